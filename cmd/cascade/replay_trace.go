package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/policies"
)

// traceFlags are the flags that select the source of requests: a trace file, or a generated mix.
type traceFlags struct {
	file      string
	mix       string
	requests  int
	duration  time.Duration
	rate      float64
	spread    time.Duration
	from      time.Duration
	until     time.Duration
	maxLength int64
	seed      uint64
}

func (r *traceFlags) flags(c *cobra.Command, requests int) {
	f := c.Flags()
	f.StringVar(&r.file, "trace", "", "trace file: arrival_ms,input_tokens,output_tokens CSV or Mooncake JSONL, gzipped or not")
	f.StringVar(&r.mix, "mix", "mixed", "without --trace, generate this mix: "+strings.Join(trace.Names(), ", ")+", or a JSON file that \"cascade trace fit\" wrote")
	f.IntVar(&r.requests, "requests", requests, "use at most this many requests; 0 is all of a trace")
	f.DurationVar(&r.duration, "duration", 0, "generate no arrival after this time")
	f.Float64Var(&r.rate, "rate", 0, "mean arrivals per second; 0 keeps the trace's or the mix's own")
	f.DurationVar(&r.spread, "spread", 0, "move each arrival later by a random part of this, for traces with a coarse clock (Mooncake: 3s)")
	f.DurationVar(&r.from, "from", 0, "drop requests that arrive earlier in the trace: with --until, a slice of it")
	f.DurationVar(&r.until, "until", 0, "drop requests that arrive later in the trace; 0 drops none")
	f.Int64Var(&r.maxLength, "max-length", 0, "drop requests longer than this, prompt and output together; 0 drops none")
	f.Uint64Var(&r.seed, "seed", 1, "decides everything random")
	completeFrom(c, "mix", trace.Names())
	c.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("trace") && cmd.Flags().Changed("mix") {
			return usageErrorf(cmd, "--trace and --mix: give one, requests are read or generated")
		}
		return nil
	}
}

// readWithin is read without requests that are longer than a model's context.
func (r *traceFlags) readWithin(context int64) ([]trace.Request, string, error) {
	if r.maxLength == 0 || r.maxLength > context {
		r.maxLength = context
	}
	return r.read()
}

// read returns the requests that the flags describe, and a name for them.
func (r *traceFlags) read() ([]trace.Request, string, error) {
	shape := trace.Shape{Rate: r.rate, Spread: r.spread, From: r.from, Until: r.until, MaxLength: policies.Tokens(r.maxLength), Limit: r.requests, Seed: r.seed}
	if r.file != "" {
		requests, err := readTrace(r.file)
		if err != nil {
			return nil, "", err
		}
		requests, err = shape.Apply(requests)
		return requests, r.file, err
	}
	g, err := generator(r.mix)
	if err != nil {
		return nil, "", err
	}
	g.Requests, g.Duration, g.Seed = r.requests, r.duration, r.seed
	requests, err := g.Generate()
	if err != nil {
		return nil, "", err
	}
	requests, err = shape.Apply(requests)
	return requests, "mix " + g.Name, err
}

func readTrace(path string) ([]trace.Request, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return trace.Read(f, path)
}

// generator returns a built-in mix, or the one in a JSON file.
func generator(name string) (trace.Generator, error) {
	if g, ok := trace.Named(name); ok {
		return g, nil
	}
	data, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return trace.Generator{}, fmt.Errorf("--mix %q: neither a shipped mix (%s) nor a file", name, strings.Join(trace.Names(), ", "))
	}
	if err != nil {
		return trace.Generator{}, err
	}
	var g trace.Generator
	if err := json.Unmarshal(data, &g); err != nil {
		return trace.Generator{}, fmt.Errorf("%s: %w", name, err)
	}
	return g, nil
}

// newTrace is "cascade trace": it inspects, fits and generates traces.
func newTrace(s *settings) *cobra.Command {
	c := group(&cobra.Command{
		Use:   "trace",
		Short: "Generate, describe and fit request traces",
		Long: `A trace is a file with a line for each request, sorted by arrival, gzipped or not. "cascade plan",
"sim", "replay" and "report" read it with --trace. Make one of an hour of your own requests:

  CSV     arrival_ms,input_tokens,output_tokens     the header, in any order; others are ignored
          400,3000,200
  JSONL   {"timestamp": 400, "input_length": 3000, "output_length": 200, "hash_ids": [7, 8, 9, 12, 13]}

Times are milliseconds since the trace began, -1 in every line where there are none; lengths are
tokens. Azure's columns TIMESTAMP, ContextTokens and GeneratedTokens are read, too.

hash_ids say which prompts begin alike, such as the turns of a conversation: one for each whole
block of 512 tokens of the prompt, equal for equal blocks after equal beginnings. Any unsigned
numbers of 64 bits do, for instance hashes of the prompt up to the end of the block. Without them,
as in CSV, every prompt counts in full: for conversations the prefill is too high then, and no
cache has hits.

Mixes are generated traces, fitted to public ones, that --mix takes:

  mixed          nine requests in ten of chat, the others of conversation: the share is a choice
  chat           short prompts: Azure's conversations of 2023 (Azure/AzurePublicDataset)
  conversation   long documents and several turns, which share prefixes: Mooncake (kvcache-ai/Mooncake)
  assistant      requests of conversation up to 8,192 tokens: turns of a chat with a system prompt
  agent          loops of tool calls up to 64Ki tokens, which share prefixes and the tools' definitions
  sharegpt       the lengths of ShareGPT, which the paper uses; one request per second`,
	})
	gen := &traceFlags{}
	g := &cobra.Command{
		Use:   "generate",
		Short: "Write a generated trace (CSV, or JSONL with --json and where prompts share prefixes)",
		Example: `  cascade trace generate --mix chat --requests 1000 > chat.csv
  cascade trace generate --mix mixed --duration 10m --seed 7 > mixed.jsonl`,
		Args: exactArgs(0),
		RunE: func(*cobra.Command, []string) error {
			requests, _, err := gen.read()
			if err != nil {
				return err
			}
			if s.json {
				return trace.WriteJSONL(s.stdout, requests)
			}
			return trace.Write(s.stdout, requests)
		},
	}
	gen.flags(g, 1000)
	fit := trace.FitConfig{}
	src := &traceFlags{}
	f := &cobra.Command{
		Use:   "fit FILE",
		Short: "Fit a generator to a trace and print it as JSON; --compare shows how good it is",
		Long: `Fit makes a generator of any trace: lengths as a mixture of bivariate lognormals,
arrivals as Gamma gaps whose rate drifts from minute to minute, shared prefixes as
continued conversations. The shipped mixes were made by this command from the
public traces of kvcache-ai/Mooncake (FAST'25) and Azure/AzurePublicDataset (2023):

  cascade trace fit azure2023_conv.csv --compare
  cascade trace fit conversation_trace.jsonl --spread 3s --compare`,
		Args: exactArgs(1),
	}
	compare := f.Flags().Bool("compare", false, "print quantiles of the trace beside a generated one instead of the fit")
	f.Flags().StringVar(&fit.Name, "name", "fitted", "name of the mix")
	f.Flags().IntVar(&fit.Components, "components", 0, "lognormals in the mixture of lengths; 0 means 12")
	f.Flags().Uint64Var(&fit.Seed, "seed", 1, "starts the fit")
	f.Flags().DurationVar(&src.spread, "spread", 0, "window of the trace's clock (Mooncake: 3s)")
	f.RunE = func(_ *cobra.Command, args []string) error {
		src.file, src.seed = args[0], fit.Seed
		fit.Source = args[0]
		return s.fitTrace(src, fit, *compare)
	}
	c.AddCommand(g, f)
	return c
}

func (s *settings) fitTrace(src *traceFlags, cfg trace.FitConfig, compare bool) error {
	requests, _, err := src.read()
	if err != nil {
		return err
	}
	g, err := trace.Fit(requests, cfg)
	if err != nil {
		return err
	}
	if !compare {
		return s.print(g)
	}
	g.Requests, g.Seed = len(requests), cfg.Seed
	made, err := g.Generate()
	if err != nil {
		return err
	}
	q := trace.Compare(requests, made)
	if s.json {
		return s.print(q)
	}
	_, err = fmt.Fprint(s.stdout, q)
	return err
}
