package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/policydev"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/calllog"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

func readSignature(path string) (sign.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return sign.File{}, err
	}
	if info.Size() > sign.MaxFile {
		return sign.File{}, fmt.Errorf("%s: %d bytes exceed the limit of a signature file, %d", path, info.Size(), sign.MaxFile)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return sign.File{}, err
	}
	f, err := sign.Decode(text)
	if err != nil {
		return f, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

func newPolicyVerify(s *settings) *cobra.Command {
	b := &policyBuildFlags{}
	var keys []string
	var threshold int
	var signature, configuration, fleet string
	c := &cobra.Command{
		Use:   "verify FILE|DIR",
		Short: "Check a module's signatures as a host does",
		Long: `Verify checks that FILE.sig is about this module, about what --configuration has and for
the fleet of --fleet, is signed by enough of the keys given, and has not expired, and
prints what it says. A folder is built first: that the signature is of what these sources
give is checked, too, and nothing of it is changed. That runs compilers over the sources, though none of what they
give: if you do not trust their author, build them in a sandbox, or verify the module.

Exit codes: 0 when a host that trusts these keys would load the module, 1 when not.`,
		Example: `  cascade policy verify my-refiner.wasm --keys author.pub
  cascade policy verify my-refiner.wasm --keys author.pub,reviewer.pub --threshold 2`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (failed error) {
			if len(keys) == 0 {
				return usageErrorf(cmd, "name the public keys that you trust with --keys")
			}
			ring := sign.Ring{Fleet: fleet, Threshold: threshold}
			for _, k := range keys {
				text, err := os.ReadFile(k)
				if err != nil {
					return err
				}
				public, err := sign.ParsePublic(text)
				if err != nil {
					return fmt.Errorf("%s: %w", k, err)
				}
				ring.Keys = append(ring.Keys, public...)
			}
			l, done, err := b.inspect(cmd.Context(), args[0])
			defer func() { failed = errors.Join(failed, done()) }()
			if err != nil {
				return err
			}
			code, err := policydev.ReadModule(l.file)
			if err != nil {
				return err
			}
			if signature == "" {
				signature = l.at + signatureSuffix
			}
			file, err := readSignature(signature)
			if err != nil {
				return err
			}
			configured, err := readConfiguration(configuration)
			if err != nil {
				return err
			}
			if _, err := sign.Verify(file, code, configured, ring, time.Now()); err != nil {
				return fmt.Errorf("%s: %w", signature, err)
			}
			return s.printStatement(signature, file)
		},
	}
	b.flags(c)
	c.Flags().StringSliceVar(&keys, "keys", nil, "files with public keys")
	c.Flags().IntVar(&threshold, "threshold", 1, "how many of the keys must have signed")
	c.Flags().StringVar(&fleet, "fleet", sign.DefaultFleet, "name of the fleet that is to admit the module (policies.fleet)")
	c.Flags().StringVar(&signature, "signature", "", "signature file; empty: FILE.sig")
	c.Flags().StringVar(&configuration, "configuration", "", "file with what the module is to be configured with; empty: nothing")
	return c
}

// printStatement prints the statement of a signature file.
func (s *settings) printStatement(path string, f sign.File) error {
	if s.json {
		text, err := f.Encode()
		if err != nil {
			return err
		}
		_, err = s.stdout.Write(text)
		return err
	}
	st := f.Statement
	fmt.Fprintf(s.stdout, "%s: %s %s, %s, sha256 %s\n", path, st.Name, st.Version, st.ABI, hex.EncodeToString(st.Digest[:]))
	for _, g := range st.Grants {
		fmt.Fprintf(s.stdout, "  decides %s, at most %s ticks, %s µs, %s pages\n", g.Kind, limitOrDefault(g.Fuel), limitOrDefault(g.Micros), limitOrDefault(g.Pages))
	}
	end := "no end"
	if st.NotAfter > 0 {
		end = "until " + time.Unix(st.NotAfter, 0).UTC().Format(time.RFC3339)
	}
	fmt.Fprintf(s.stdout, "  for fleet %s, generation %d, %s\n", st.Fleet, st.Generation, end)
	switch {
	case st.Configuration != lifecycle.Digest{}:
		fmt.Fprintf(s.stdout, "  configured with sha256 %s, and nothing else\n", st.Configuration)
	default:
		fmt.Fprintf(s.stdout, "  configured with nothing\n")
	}
	if all, err := calllog.Golden(f.Golden, st.Digest); len(f.Golden) > 0 && err != nil {
		fmt.Fprintf(s.stdout, "  %v\n", err)
	} else if len(f.Golden) > 0 {
		fmt.Fprintf(s.stdout, "  expected to give %s, sha256 %s\n", plural(len(all), "answer"), st.Golden)
	}
	for _, g := range f.Signatures {
		fmt.Fprintf(s.stdout, "  signed by %s\n", g.Key)
	}
	return nil
}

func limitOrDefault(limit uint64) string {
	if limit == 0 {
		return "the host's"
	}
	return fmt.Sprint(limit)
}
