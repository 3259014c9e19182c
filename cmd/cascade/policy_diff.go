package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/policydev"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/internal/atomicfile"
	"github.com/cascadeinfer/cascade/wasm/calllog"
)

// policyDiffFlags are the flags of "cascade policy diff".
type policyDiffFlags struct {
	policyBuildFlags
	configuration, out string
	show               int
}

// replayPolicy replays recorded calls in a module, a directory or a built-in policy.
func (s *settings) replayPolicy(
	ctx context.Context, p *policyDiffFlags, who string, frames []policydev.Frame,
) (played policydev.ReplayResult, err error) {
	if !exists(who) && slices.Contains(policydev.Builtins(), who) {
		return policydev.ReplayNative(ctx, who, frames)
	}
	subject, err := s.openModule(ctx, &p.policyBuildFlags, who, p.configuration)
	if err != nil {
		return played, err
	}
	defer func() { err = errors.Join(err, subject.Close()) }()
	return policydev.Replay(ctx, subject, frames)
}

func newPolicyDiff(s *settings) *cobra.Command {
	p := &policyDiffFlags{}
	c := &cobra.Command{
		Use:   "diff FRAMES [A] B",
		Short: "Compare the decisions of two policies, or of one with those recorded",
		Long: `Diff has two policies answer the calls of a file in their order, each by a fresh instance,
and prints where they decide differently. Without A it is the answers in the file, as
"cascade policy status --records" brings them, that B is set beside: where it would have
decided otherwise. A and B are modules, folders, or names of built-in policies:

  ` + strings.Join(policydev.Builtins(), "\n  ") + `

With -o it writes the calls with the answers of B, to keep them as the expected ones.

The digest is of all decisions and their fuel, the memory's hash of all that the instance
holds afterwards: both are the same in every process and on every machine.

Exit codes: 0 when they decide the same, and with -o; 1 when they do not, when the file's
answers are of this very module and differ, or when all calls are of kinds that it does not
decide.`,
		Example: `  cascade policy diff recorded.jsonl my-refiner.wasm
  cascade policy diff recorded.jsonl refine-weighted my-refiner.wasm
  cascade policy diff recorded.jsonl v1.wasm v2.wasm --show 100
  cascade policy diff testdata/frames.jsonl . -o testdata/frames.jsonl`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 2 && len(args) != 3 {
				return cli.Usagef(c, "name a file of calls, and one policy or two, not %d", max(len(args)-1, 0))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return s.diffPolicies(cmd.Context(), p, args) },
	}
	p.policyBuildFlags.flags(c)
	c.Flags().StringVar(&p.configuration, "configuration", "", "file with what the modules are configured with")
	c.Flags().IntVar(&p.show, "show", 20, "how many differences to print")
	c.Flags().StringVarP(&p.out, "output", "o", "", "write the calls with the answers of B to this file")
	return c
}

// diffPolicies compares the answers of two policies, or of one with those in the file.
func (s *settings) diffPolicies(ctx context.Context, p *policyDiffFlags, args []string) error {
	frames, err := policydev.LoadFrames(args[0])
	if err != nil {
		return err
	}
	a, first, second := policydev.ReplayResult{Records: policydev.Recorded(frames)}, args[0], args[len(args)-1]
	if len(args) == 3 {
		first = args[1]
		if a, err = s.replayPolicy(ctx, p, first, frames); err != nil {
			return err
		}
	}
	b, err := s.replayPolicy(ctx, p, second, frames)
	if err != nil {
		return err
	}
	if p.out != "" {
		var text bytes.Buffer
		if err := calllog.Write(&text, calllog.FromRecords(b.Records)); err != nil {
			return err
		}
		if err := atomicfile.Write(p.out, text.Bytes(), 0o644); err != nil {
			return err
		}
	}
	c := policydev.Compare(a.Records, b.Records, p.show)
	c.A.Name, c.A.Memory, c.A.Digest = first, a.Memory, a.Digest
	c.B.Name, c.B.Memory, c.B.Digest = second, b.Memory, b.Digest
	if len(args) == 3 {
		err = s.printComparison(c, first)
	} else {
		err = s.printComparison(c, "in the file")
	}
	if err != nil {
		return err
	}
	if len(args) == 2 {
		changed, fuel := policydev.Changed(frames, b.Records)
		if fuel > 0 && !s.JSON {
			fmt.Fprintf(s.Stdout, "%s took other fuel than in the file: an instance that has answered other calls before has another heap\n", cli.Plural(fuel, "frame"))
		}
		if changed > 0 {
			return fmt.Errorf("%s: this module has answered %s of %d otherwise when they were recorded", second, cli.Plural(changed, "frame"), c.Frames)
		}
	}
	if c.Differ > 0 && p.out == "" {
		return fmt.Errorf("%s and %s decide %d of %d differently", c.A.Name, second, c.Differ, c.Frames)
	}
	return nil
}

// printComparison prints a comparison.
func (s *settings) printComparison(c policydev.Comparison, first string) error {
	if s.JSON {
		return s.Print(c)
	}
	text := fmt.Sprintf("%s: %d decided the same, %d differently", cli.Plural(c.Frames, "frame"), c.Same, c.Differ)
	if c.Unknown > 0 {
		text += fmt.Sprintf(", %d without a decision to compare with", c.Unknown)
	}
	fmt.Fprintln(s.Stdout, text)
	for _, side := range []policydev.Summary{c.A, c.B} {
		if side.Digest == "" {
			continue
		}
		line := fmt.Sprintf("%s: digest %s", side.Name, side.Digest[:16])
		if side.Memory != "" {
			line += fmt.Sprintf(", memory %s, fuel p50 %d, p99 %d", side.Memory[:16], side.Fuel50, side.Fuel99)
		}
		for _, cause := range slices.Sorted(maps.Keys(side.Faults)) {
			line += fmt.Sprintf("; %d %s", side.Faults[cause], cause)
		}
		fmt.Fprintln(s.Stdout, line)
	}
	if len(c.Shown) == 0 {
		return nil
	}
	t := report.Table{Header: []string{"frame", "kind", first, c.B.Name}, Left: 4}
	for _, d := range c.Shown {
		t.Rows = append(t.Rows, []string{fmt.Sprint(d.Frame), d.Kind, d.A, d.B})
	}
	if more := c.Differ - len(c.Shown); more > 0 {
		t.Notes = append(t.Notes, fmt.Sprintf("%d more: --show prints as many as you like.", more))
	}
	return t.Text(s.Stdout)
}
