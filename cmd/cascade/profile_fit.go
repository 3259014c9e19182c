package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/profiling"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/internal/atomicfile"
	"github.com/cascadeinfer/cascade/policies"
)

// fitFlags are the flags of "cascade profile fit".
type fitFlags struct {
	name, out, plot   string
	kvBytes, kvTokens int64
	maxBatch          int
	options           profiling.FitOptions
}

// newProfileFit is "cascade profile fit".
func newProfileFit(s *settings) *cobra.Command {
	f := &fitFlags{}
	c := &cobra.Command{
		Use:   "fit RECORD",
		Short: "Fit a cost profile to what \"cascade profile measure\" has recorded",
		Long: `Fit finds, by non-negative least squares,
- the paper's QoE coefficients D_0 … D_4, on each request's time per token (end to end, over
  the tokens generated) and its average batch loads;
- the coefficients of an iteration, d0, d1 and d4, on the times between tokens, and d2 and d3
  on the times to the first token of requests that were alone in the engine;
- κ, if the record has mixed cells.

Standard errors come from fits that each leave one cell out. Fit warns of coefficients that
are not larger than their standard error, and of cells whose tokens came in bursts, of which
it uses only the end-to-end times.

A fifth of the requests, chosen by --seed, is held out: the errors are those of predicting
them, beside those of a static predictor that always predicts the mean.

With --out it writes a profile. What no client can measure is given: the bytes of KV cache
that a token takes, which are 2 · layers · KV heads · head size · bytes per element (Llama-3.1-8B
in bf16: 131072), and for engines without vLLM's metrics the size of the cache.`,
		Example: `  cascade profile fit engine.jsonl
  cascade profile fit engine.jsonl --kv-bytes 131072 --out engine.json --plot errors.svg
  cascade plan --profile engine.json --mix chat --rate 10 --replicas 8`,
		Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.out != "" && filepath.Ext(f.out) != ".json" {
				return cli.Usagef(cmd, "--out %q: the name of a profile file ends in .json", f.out)
			}
			if f.out != "" && f.kvBytes <= 0 {
				return cli.Usagef(cmd, "--out needs --kv-bytes, the bytes of KV cache that a token takes: see \"cascade profile fit --help\"")
			}
			return s.fitProfile(args[0], f)
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.out, "out", "", "write the profile to this .json file")
	fl.StringVar(&f.name, "name", "", "name of the profile; default: that of the file")
	fl.StringVar(&f.plot, "plot", "", "write a picture of the errors to this file (.svg)")
	fl.Int64Var(&f.kvBytes, "kv-bytes", 0, "bytes of KV cache per token, over all ranks")
	fl.Int64Var(&f.kvTokens, "kv-tokens", 0, "tokens that the KV cache holds; default: as the engine reported it")
	fl.IntVar(&f.maxBatch, "max-batch", 0, "sequences that the engine runs at once; default: the most that ran in the record")
	fl.Float64Var(&f.options.HeldOut, "held-out", 0.2, "share of the requests to hold out")
	fl.Uint64Var(&f.options.Seed, "seed", 1, "seed that chooses them")
	return c
}

// fitResult is the result of "cascade profile fit".
type fitResult struct {
	Record string `json:"record"`
	profiling.Fitted
	Profile *cost.Profile `json:"profile,omitempty"`
}

func (s *settings) fitProfile(path string, f *fitFlags) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	record, err := profiling.ReadRecord(file)
	if errors.Is(err, io.EOF) {
		err = errors.New("the file is empty; \"cascade profile measure\" writes it")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	out := fitResult{Record: path}
	if out.Fitted, err = profiling.Fit(record.Logs, f.options); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if f.out != "" {
		p, err := f.profile(path, record, out.Fitted)
		if err != nil {
			return err
		}
		out.Profile = &p
	}
	if f.plot != "" {
		pic, err := report.PredictionPicture(out.Fitted)
		if err != nil {
			return err
		}
		if err := writePicture(f.plot, pic); err != nil {
			return err
		}
	}
	for _, warning := range out.Warnings() {
		fmt.Fprintln(s.Stderr, warning)
	}
	if s.JSON {
		return s.Print(out)
	}
	if err := report.WriteTables(s.Stdout, report.Coefficients(out.Fitted), report.PredictionErrors(out.Fitted), report.ErrorHistogram(out.Fitted)); err != nil {
		return err
	}
	if f.out != "" {
		fmt.Fprintf(s.Stdout, "The profile is in %s: write \"profile: %s\" in the fleet file, or give it to --profile.\n", f.out, f.out)
	}
	return nil
}

// profile makes the profile and writes its file.
func (f *fitFlags) profile(path string, record profiling.Record, fitted profiling.Fitted) (cost.Profile, error) {
	name := f.name
	if name == "" {
		name = strings.TrimSuffix(filepath.Base(f.out), ".json")
	}
	command := fmt.Sprintf("cascade profile fit %s --kv-bytes %d --held-out %g --seed %d", filepath.Base(path), f.kvBytes, f.options.HeldOut, f.options.Seed)
	p, err := fitted.Profile(record, profiling.Given{
		Name: name, KVBytesPerToken: policies.Bytes(f.kvBytes), KVTokens: policies.Tokens(f.kvTokens), MaxBatch: f.maxBatch, Command: command,
	})
	if err != nil {
		return p, err
	}
	text, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return p, err
	}
	return p, atomicfile.Write(f.out, append(text, '\n'), 0o644)
}
