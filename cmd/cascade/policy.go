package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/policydev"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

// newPolicy is "cascade policy": the commands for authors and operators of
// policies.
func newPolicy(s *settings) *cobra.Command {
	c := cli.Group(&cobra.Command{
		Use:   "policy",
		Short: "Write, test, sign and roll out policies of your own",
		Long: `A policy decides one thing: how a fleet is divided into length stages (partition),
where a boundary should lie (refine), which replica gets a migrating request (bid), which is
overloaded (outlier), where a request starts (place), or whether a plan is allowed (guard).
Written in Go, C or Rego, it is built as a WebAssembly module that runs in a sandbox: it
sees only its call, and cannot make a request fail.

  cascade policy new my-refiner      creates one: forty lines that work
  cd my-refiner                      edit main.go
  cascade policy test                builds it and tests it as a host would run it
  cascade policy test --bench        what a call costs, beside the built-in policy
  cascade policy keygen author       a pair of keys, once
  cascade policy sign my-refiner.wasm --key author.key --name my-refiner --version 1.0.0
  cascade policy push my-refiner.wasm      in shadow, to a running fleet that trusts the key
  cascade policy status --watch            how often would it have decided otherwise?
  cascade policy status refine --records   what was asked and decided lately, and
  cascade policy diff refine.jsonl my-refiner.wasm     what it would have decided
  cascade policy promote refine --scope local   through a canary, then to all
  cascade policy rollback refine           and back, at once

Instead of a module, commands accept a directory or a file of rules in Rego: they build it
first, to NAME.wasm in it; files that belong to the module are beside that. Inspect only
reads, and writes nothing there.`,
	})
	c.AddCommand(newPolicyNew(s), newPolicyTest(s), newPolicyInspect(s), newPolicyDiff(s), newPolicyKeygen(s), newPolicySign(s),
		newPolicyPush(s), newPolicyStatus(s), newPolicyPromote(s), newPolicyRollback(s))
	return c
}

func newPolicyNew(s *settings) *cobra.Command {
	var n policydev.NewConfig
	c := &cobra.Command{
		Use:   "new NAME",
		Short: "Create a policy: sources, a native test and recorded calls",
		Long: `New writes a directory with a policy that works: main.go (or main.c), a test that runs
natively, calls in testdata, and a README; rules in Rego, with --lang rego, are of kind
guard, policy.rego with its settings. "cascade policy test" accepts it as it is.
NAME may be a path; its last element names the policy.

In Go it is a module of its own. Inside a checkout of Cascade its go.mod refers to that
by a relative path; elsewhere to the checkout that --cascade names, or this program was
built in, or to this program's version. In C it needs cascade_policy.h, which is
written beside it, and a compiler for wasm32: see "cascade policy test --help".`,
		Example: `  cascade policy new my-refiner
  cascade policy new cheap-bids --kind bid --lang c
  cascade policy new ../policies/no-small-stages --kind guard --cascade ~/src/cascade
  cascade policy new at-night --lang rego`,
		Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			n.Dir = args[0]
			if n.Lang == policydev.LangRego && !cmd.Flags().Changed("kind") {
				n.Kind = abi.Guard.String()
			}
			b, err := policydev.New(n)
			if err != nil {
				return err
			}
			with := ""
			if b.Lang == policydev.LangRego {
				with = " --configuration " + filepath.Join(b.Dir, "settings.json")
			}
			return s.PrintLine(b, "%s: %s in %s: %s\nnext: cascade policy test %s%s", b.Dir, b.Name, b.Lang, strings.Join(b.Files, ", "), b.Dir, with)
		},
	}
	f := c.Flags()
	f.StringVar(&n.Kind, "kind", "refine", "what it decides: "+strings.Join(policydev.NewKinds(), ", ")+"; in Rego always guard")
	f.StringVar(&n.Lang, "lang", "go", "language: "+strings.Join(policydev.NewLanguages(), ", "))
	f.StringVar(&n.Sources, "cascade", "", "checkout of Cascade to build a Go policy against")
	cli.CompleteFrom(c, "kind", policydev.NewKinds())
	cli.CompleteFrom(c, "lang", policydev.NewLanguages())
	return c
}

// policyBuildFlags are the flags of commands that build modules.
type policyBuildFlags struct{ cc string }

func (b *policyBuildFlags) flags(c *cobra.Command) {
	c.Flags().StringVar(&b.cc, "cc", "", "C compiler for wasm32, for instance \"zig cc\"; empty: zig, the Python package ziglang, or clang")
}

// module returns the path of a module. It builds the module if the path is a directory or a rules
// file.
func (b *policyBuildFlags) module(ctx context.Context, path string) (file string, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.IsDir() && filepath.Ext(path) != ".rego" {
		return path, nil
	}
	built, err := policydev.Build(ctx, path, "", b.cc)
	return built.File, err
}

// inspectedModule is a module that a command only reads.
type inspectedModule struct {
	file string // path of the module
	name string // displayed name
	at   string // prefix of the names of the module's files
}

// inspect returns a module. If it builds the module from a directory or rules, it writes a
// temporary file, which done removes. It leaves files beside the sources unchanged, because they
// may be the ones to verify.
func (b *policyBuildFlags) inspect(ctx context.Context, path string) (l inspectedModule, done func() error, err error) {
	done = func() error { return nil }
	info, err := os.Stat(path)
	if err != nil {
		return l, done, err
	}
	if !info.IsDir() && filepath.Ext(path) != ".rego" {
		return inspectedModule{path, path, path}, done, nil
	}
	at, err := policydev.ModulePath(path)
	if err != nil {
		return l, done, err
	}
	temp, err := os.MkdirTemp("", "cascade-look")
	if err != nil {
		return l, done, err
	}
	done = func() error { return os.RemoveAll(temp) }
	built, err := policydev.Build(ctx, path, filepath.Join(temp, filepath.Base(at)), b.cc)
	return inspectedModule{built.File, path, at}, done, err
}

// openModule loads a module with a configuration file. It builds the module if the path is a
// directory or a rules file. What the module logs is printed on standard error.
func (s *settings) openModule(
	ctx context.Context, b *policyBuildFlags, path, configuration string,
) (*policydev.Subject, error) {
	var text []byte
	if configuration != "" {
		var err error
		if text, err = os.ReadFile(configuration); err != nil {
			return nil, err
		}
	}
	file, err := b.module(ctx, path)
	if err != nil {
		return nil, err
	}
	untimed := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	logger := slog.New(slog.NewTextHandler(s.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: untimed}))
	return policydev.Open(ctx, file, text, logger)
}

func pathOrWorkingDir(args []string) string {
	if len(args) == 0 {
		return "."
	}
	return args[0]
}

func newPolicyInspect(s *settings) *cobra.Command {
	b, trust := &policyBuildFlags{}, &policyTrustFlags{}
	c := &cobra.Command{
		Use:   "inspect FILE|DIR",
		Short: "Show what a module decides, contains and may do, and whether hosts accept it",
		Long: `Inspect reads a module as a host does: it checks and meters it, compiles it and creates
an instance. It prints what the module decides and the limits of each call, its imports and exports, its
size and digest, and the statement in FILE.sig, if there is one.

With --keys it checks that FILE.sig is about this module, about what --configuration has and
for the fleet of --fleet, is signed by enough of the keys given, and has not expired.

A folder, or rules, is built first, and nothing of it is changed: with --keys it is checked,
too, that the signature is of what these sources give. That runs compilers over the sources,
though none of what they give: if you do not trust their author, build them in a sandbox, or
inspect the module.

Exit codes: 0 for a module that hosts accept and, with --keys, that a host which trusts these
keys would load; 1 for another, with the reason and its place in the file.`,
		Example: `  cascade policy inspect my-refiner.wasm
  cascade policy inspect my-refiner.wasm --keys author.pub
  cascade policy inspect my-refiner --keys author.pub,reviewer.pub --threshold 2`,
		Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (failed error) {
			if err := cli.RequireFlag(cmd, "keys", "threshold", "fleet", "configuration"); err != nil {
				return err
			}
			l, done, err := b.inspect(cmd.Context(), args[0])
			defer func() { failed = errors.Join(failed, done()) }()
			if err != nil {
				return err
			}
			in, err := policydev.Inspect(cmd.Context(), l.file)
			if err != nil {
				return err
			}
			in.File = l.name
			err = in.Err()
			at := cmp.Or(trust.signature, l.at+policydev.SignatureSuffix)
			signature, unverified := trust.verify(l.file, at)
			err = errors.Join(err, unverified)
			stated := signature.Statement.Generation > 0
			if s.JSON {
				out := struct {
					policydev.Inspection
					Signature json.RawMessage `json:"signature,omitempty"`
				}{Inspection: in}
				if stated {
					text, unwritten := signature.Encode()
					out.Signature, err = text, errors.Join(err, unwritten)
				}
				return errors.Join(s.Print(out), err)
			}
			err = errors.Join(s.printInspection(in), err)
			if stated {
				err = errors.Join(err, s.printStatement(at, signature))
			}
			return err
		},
	}
	b.flags(c)
	trust.flags(c)
	return c
}

func (s *settings) printInspection(in policydev.Inspection) error {
	kib := func(n uint64) string { return fmt.Sprintf("%d KiB", n>>10) }
	metered := ""
	if in.Metered > 0 { // metered before it was rejected
		metered = fmt.Sprintf(", %d with its meter (%s)", in.Metered, in.MeterVersion)
	}
	fmt.Fprintf(s.Stdout, "%s: %d bytes%s\nsha256   %s\n", in.File, in.Bytes, metered, in.SHA256)
	if in.Functions > 0 {
		fmt.Fprintf(s.Stdout, "code     %d functions, the largest of %d bytes; %d loops\n", in.Functions, in.Largest, in.Loops)
		fmt.Fprintf(s.Stdout, "memory   %s, %s when started, at most %s\n", kib(in.Memory), kib(uint64(in.Started)), kib(in.MaxMemory))
		fmt.Fprintf(s.Stdout, "imports  %s\nexports  %s\n", strings.Join(in.Imports, "\n         "), strings.Join(in.Exports, "\n         "))
	}
	if len(in.Kinds) == 0 {
		return nil
	}
	k := report.Table{Header: []string{"kind", "fuel", "wall", "memory", "largest call"}, Left: 1}
	for _, l := range in.Kinds {
		k.Rows = append(k.Rows, []string{l.Kind, fmt.Sprint(l.Fuel), fmt.Sprintf("%g ms", float64(l.Micros)/1000), kib(uint64(l.Pages) << 16), kib(uint64(l.Frame))})
	}
	return k.Text(s.Stdout)
}
