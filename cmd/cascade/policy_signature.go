package main

import (
	"encoding/hex"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/policydev"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/calllog"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

// policyTrustFlags say which signatures of a module count.
type policyTrustFlags struct {
	keys                            []string
	threshold                       int
	signature, configuration, fleet string
}

func (p *policyTrustFlags) flags(c *cobra.Command) {
	c.Flags().StringSliceVar(&p.keys, "keys", nil, "files with the public keys that you trust: checks the signatures as a host does")
	c.Flags().IntVar(&p.threshold, "threshold", 1, "with --keys: how many of the keys must have signed")
	c.Flags().StringVar(&p.fleet, "fleet", sign.DefaultFleet, "with --keys: name of the fleet that is to admit the module (policies.fleet)")
	c.Flags().StringVar(&p.configuration, "configuration", "", "with --keys: file with what the module is to be configured with; empty: nothing")
	c.Flags().StringVar(&p.signature, "signature", "", "signature file; empty: FILE.sig")
}

// verify reads the signature file at a path, and verifies the module against it if there are keys. Without keys a
// missing file is no error.
func (p *policyTrustFlags) verify(module, at string) (sign.File, error) {
	if len(p.keys) == 0 && p.signature == "" && !exists(at) {
		return sign.File{}, nil
	}
	file, err := policydev.ReadSignature(at)
	if err != nil || len(p.keys) == 0 {
		return file, err
	}
	ring := sign.Ring{Fleet: p.fleet, Threshold: p.threshold}
	for _, k := range p.keys {
		public, err := wiring.ReadKeys(k)
		if err != nil {
			return sign.File{}, err
		}
		ring.Keys = append(ring.Keys, public...)
	}
	code, err := policydev.ReadModule(module)
	if err != nil {
		return sign.File{}, err
	}
	configured, err := readConfiguration(p.configuration)
	if err != nil {
		return sign.File{}, err
	}
	if _, err := sign.Verify(file, code, configured, ring, time.Now()); err != nil {
		return sign.File{}, fmt.Errorf("%s: %w", at, err)
	}
	return file, nil
}

// printStatement prints the statement of a signature file.
func (s *settings) printStatement(path string, f sign.File) error {
	if s.JSON {
		text, err := f.Encode()
		if err != nil {
			return err
		}
		_, err = s.Stdout.Write(text)
		return err
	}
	st := f.Statement
	fmt.Fprintf(s.Stdout, "%s: %s %s, %s, sha256 %s\n", path, st.Name, st.Version, st.ABI, hex.EncodeToString(st.Digest[:]))
	for _, g := range st.Grants {
		limits := "within the host's limits"
		if g.Fuel != 0 || g.Micros != 0 || g.Pages != 0 {
			limits = fmt.Sprintf("at most %s ticks, %s µs, %s pages", limitOrDefault(g.Fuel), limitOrDefault(g.Micros), limitOrDefault(g.Pages))
		}
		fmt.Fprintf(s.Stdout, "  decides %s, %s\n", g.Kind, limits)
	}
	end := "no end"
	if st.NotAfter > 0 {
		end = "until " + time.Unix(st.NotAfter, 0).UTC().Format(time.RFC3339)
	}
	fmt.Fprintf(s.Stdout, "  for fleet %s, generation %d, %s\n", st.Fleet, st.Generation, end)
	switch {
	case st.Configuration != lifecycle.Digest{}:
		fmt.Fprintf(s.Stdout, "  configured with sha256 %s, and nothing else\n", st.Configuration)
	default:
		fmt.Fprintf(s.Stdout, "  configured with nothing\n")
	}
	if all, err := calllog.Golden(f.Golden, st.Digest); len(f.Golden) > 0 && err != nil {
		fmt.Fprintf(s.Stdout, "  %v\n", err)
	} else if len(f.Golden) > 0 {
		fmt.Fprintf(s.Stdout, "  expected to give %s, sha256 %s\n", cli.Plural(len(all), "answer"), st.Golden)
	}
	for _, g := range f.Signatures {
		fmt.Fprintf(s.Stdout, "  signed by %s\n", g.Key)
	}
	return nil
}

func limitOrDefault(limit uint64) string {
	if limit == 0 {
		return "the host's"
	}
	return fmt.Sprint(limit)
}
