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

	"github.com/cascadeinfer/cascade/cmd/internal/fileio"
	"github.com/cascadeinfer/cascade/cmd/internal/policydev"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/wasm/calllog"
)

// policyReplayFlags are the flags of the commands that replay calls.
type policyReplayFlags struct {
	policyBuildFlags
	configuration string
	show          int
}

func (p *policyReplayFlags) flags(c *cobra.Command) {
	p.policyBuildFlags.flags(c)
	c.Flags().StringVar(&p.configuration, "configuration", "", "file with what the modules are configured with")
	c.Flags().IntVar(&p.show, "show", 20, "how many differences to print")
}

// replay replays recorded calls in a module, a directory or a built-in policy.
func (p *policyReplayFlags) replay(ctx context.Context, who string, frames []policydev.Frame) (played policydev.ReplayResult, err error) {
	if !exists(who) && slices.Contains(policydev.Builtins(), who) {
		return policydev.ReplayNative(ctx, who, frames)
	}
	subject, err := p.open(ctx, who, p.configuration)
	if err != nil {
		return played, err
	}
	defer func() { err = errors.Join(err, subject.Close()) }()
	return policydev.Replay(ctx, subject, frames)
}

func newPolicyReplay(s *settings) *cobra.Command {
	p, out := &policyReplayFlags{}, ""
	c := &cobra.Command{
		Use:   "replay FRAMES FILE|DIR|BUILT-IN",
		Short: "Replay recorded calls in a module",
		Long: `Replay has a fresh instance of a module, or a built-in policy, answer the calls of a file
in their order, and sets its decisions beside those in the file. With -o it writes the
calls with the new answers, to keep them as the expected ones.

The digest is of all decisions and their fuel, the memory's hash of all that the instance
holds afterwards: both are the same in every process and on every machine.

Exit codes: 0, also when decisions differ; 1 when the file's answers are of this very
module, and differ, or when all calls are of kinds that it does not decide.`,
		Example: `  cascade policy replay recorded.jsonl my-refiner.wasm
  cascade policy replay testdata/frames.jsonl . -o testdata/frames.jsonl
  cascade policy replay recorded.jsonl bid-least-load --json`,
		Args: exactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			frames, err := policydev.LoadFrames(args[0])
			if err != nil {
				return err
			}
			played, err := p.replay(cmd.Context(), args[1], frames)
			if err != nil {
				return err
			}
			recorded := policydev.Recorded(frames)
			c := policydev.Compare(recorded, played.Records, p.show)
			c.A.Name, c.B.Name, c.B.Memory, c.B.Digest = args[0], args[1], played.Memory, played.Digest
			changed, fuel := 0, 0
			for n := range recorded {
				was, now := &recorded[n], &played.Records[n]
				switch {
				case was.Frame == nil || !frames[n].FuelComparable || was.Module != now.Module || now.Module == [len(now.Module)]byte{} || now.Equal(was):
				case was.Result == now.Result && was.Cause == now.Cause && bytes.Equal(was.Output, now.Output):
					fuel++
				default:
					changed++
				}
			}
			if out != "" {
				var text bytes.Buffer
				if err := calllog.Write(&text, calllog.FromRecords(played.Records)); err != nil {
					return err
				}
				if err := fileio.WriteAtomic(out, text.Bytes(), 0o666); err != nil {
					return err
				}
			}
			if err = s.printComparison(c, "in the file"); err == nil && fuel > 0 && !s.json {
				fmt.Fprintf(s.stdout, "%s took other fuel than in the file: an instance that has answered other calls before has another heap\n", plural(fuel, "frame"))
			}
			if err == nil && changed > 0 {
				err = fmt.Errorf("%s: this module has answered %s of %d otherwise when they were recorded", args[1], plural(changed, "frame"), c.Frames)
			}
			return err
		},
	}
	p.flags(c)
	c.Flags().StringVarP(&out, "output", "o", "", "write the calls with the new answers to this file")
	return c
}

func newPolicyDiff(s *settings) *cobra.Command {
	p := &policyReplayFlags{}
	c := &cobra.Command{
		Use:   "diff FRAMES [A] B",
		Short: "Compare the decisions of two policies",
		Long: `Diff has two policies answer the calls of a file, and prints where they decide
differently. Without A it is the answers in the file, as "cascade policy records" brings
them, that B is set beside: where it would have decided otherwise. A and B are modules,
folders, or names of built-in policies:
` + "  " + strings.Join(policydev.Builtins(), ", ") + `

Exit codes: 0 when they decide the same, 1 when they do not.`,
		Example: `  cascade policy diff recorded.jsonl my-refiner.wasm
  cascade policy diff recorded.jsonl refine-weighted my-refiner.wasm
  cascade policy diff recorded.jsonl v1.wasm v2.wasm --show 100`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 2 && len(args) != 3 {
				return usageErrorf(c, "name a file of calls, and one policy or two, not %d", max(len(args)-1, 0))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			frames, err := policydev.LoadFrames(args[0])
			if err != nil {
				return err
			}
			a, first, second := policydev.ReplayResult{Records: policydev.Recorded(frames)}, args[0], args[len(args)-1]
			if len(args) == 3 {
				first = args[1]
				if a, err = p.replay(cmd.Context(), first, frames); err != nil {
					return err
				}
			}
			b, err := p.replay(cmd.Context(), second, frames)
			if err != nil {
				return err
			}
			c := policydev.Compare(a.Records, b.Records, p.show)
			c.A.Name, c.A.Memory, c.A.Digest = first, a.Memory, a.Digest
			c.B.Name, c.B.Memory, c.B.Digest = second, b.Memory, b.Digest
			if len(args) == 2 {
				first = "in the file"
			}
			if err = s.printComparison(c, first); err == nil && c.Differ > 0 {
				err = fmt.Errorf("%s and %s decide %d of %d differently", c.A.Name, second, c.Differ, c.Frames)
			}
			return err
		},
	}
	p.flags(c)
	return c
}

// printComparison prints a comparison.
func (s *settings) printComparison(c policydev.Comparison, first string) error {
	if s.json {
		return s.print(c)
	}
	text := fmt.Sprintf("%s: %d decided the same, %d differently", plural(c.Frames, "frame"), c.Same, c.Differ)
	if c.Unknown > 0 {
		text += fmt.Sprintf(", %d without a decision to compare with", c.Unknown)
	}
	fmt.Fprintln(s.stdout, text)
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
		fmt.Fprintln(s.stdout, line)
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
	return t.Text(s.stdout)
}
