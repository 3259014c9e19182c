package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
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
	f.StringVar(&r.mix, "mix", "mixed", "without --trace, generate this mix: "+strings.Join(trace.Names(), ", ")+", or a JSON file that \"cascade trace --like --fit\" wrote")
	f.IntVar(&r.requests, "requests", requests, "use at most this many requests; 0 is all of a trace")
	f.DurationVar(&r.duration, "duration", 0, "generate no arrival after this time")
	f.Float64Var(&r.rate, "rate", 0, "mean arrivals per second; 0 keeps the trace's or the mix's own")
	f.DurationVar(&r.spread, "spread", 0, "move each arrival later by a random part of this, for traces with a coarse clock (Mooncake: 3s)")
	f.DurationVar(&r.from, "from", 0, "drop requests that arrive earlier in the trace: with --until, a slice of it")
	f.DurationVar(&r.until, "until", 0, "drop requests that arrive later in the trace; 0 drops none")
	f.Int64Var(&r.maxLength, "max-length", 0, "drop requests longer than this, prompt and output together; 0 drops none")
	f.Uint64Var(&r.seed, "seed", 1, "decides everything random")
	cli.CompleteFrom(c, "mix", trace.Names())
	c.PreRunE = func(cmd *cobra.Command, _ []string) error { return cli.ExcludeFlags(cmd, "trace", "mix") }
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

// likeFlags are the flags of "cascade trace" that make a mix of a trace.
type likeFlags struct {
	trace.FitConfig
	file         string
	fit, compare bool
}

// newTrace is "cascade trace": it generates traces of requests, and its help says what a trace file has.
func newTrace(s *settings) *cobra.Command {
	src, like := &traceFlags{}, &likeFlags{}
	c := &cobra.Command{
		Use:   "trace",
		Short: "Write a generated trace (CSV, or JSONL with --json and where prompts share prefixes)",
		Long: `Trace writes the requests of a mix or, with --like, of one that is fitted to a trace:
lengths as a mixture of bivariate lognormals, arrivals as Gamma gaps whose rate drifts from
minute to minute, shared prefixes as continued conversations. --fit prints that mix instead, as
JSON, which --mix takes, and --compare how good it is. The shipped mixes were made so from the
public traces of kvcache-ai/Mooncake (FAST'25) and Azure/AzurePublicDataset (2023).

A trace is a file with a line for each request, sorted by arrival, gzipped or not. "cascade plan",
"sim" and "replay" read it with --trace. Make one of an hour of your own requests:

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
  agent          loops of tool calls up to 65,536 tokens, which share prefixes and the tools' definitions
  sharegpt       the lengths of ShareGPT, which the paper uses; one request per second`,
		Example: `  cascade trace --mix chat --requests 1000 > chat.csv
  cascade trace --mix mixed --duration 10m --seed 7 > mixed.jsonl
  cascade trace --like azure2023_conv.csv --requests 5000 > more.csv
  cascade trace --like conversation_trace.jsonl --spread 3s --fit > mine.json
  cascade trace --like azure2023_conv.csv --compare`,
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cmp.Or(cli.ExcludeFlags(cmd, "like", "trace", "mix"), cli.ExcludeFlags(cmd, "fit", "compare"),
				cli.RequireFlag(cmd, "like", "fit", "compare", "name", "components")); err != nil {
				return err
			}
			if like.file != "" {
				return s.generateLike(src, like)
			}
			requests, _, err := src.read()
			if err != nil {
				return err
			}
			return s.writeTrace(requests)
		},
	}
	src.flags(c, 1000)
	f := c.Flags()
	f.StringVar(&like.file, "like", "", "generate requests like those of this trace")
	f.BoolVar(&like.fit, "fit", false, "with --like: print the mix that is fitted to the trace, as JSON")
	f.BoolVar(&like.compare, "compare", false, "with --like: print quantiles of the trace beside as many generated requests")
	f.StringVar(&like.Name, "name", "fitted", "with --like: name of the mix")
	f.IntVar(&like.Components, "components", 0, "with --like: lognormals in the mixture of lengths; 0 means 12")
	return c
}

// writeTrace writes requests as a trace.
func (s *settings) writeTrace(requests []trace.Request) error {
	if s.JSON {
		return trace.WriteJSONL(s.Stdout, requests)
	}
	return trace.Write(s.Stdout, requests)
}

// generateLike fits a mix to a trace, and prints the mix, the comparison of the two, or generated requests.
func (s *settings) generateLike(src *traceFlags, like *likeFlags) error {
	shape := trace.Shape{Spread: src.spread, From: src.from, Until: src.until, MaxLength: policies.Tokens(src.maxLength), Seed: src.seed}
	requests, err := readTrace(like.file)
	if err == nil {
		requests, err = shape.Apply(requests)
	}
	if err != nil {
		return err
	}
	like.Source, like.Seed = like.file, src.seed
	g, err := trace.Fit(requests, like.FitConfig)
	if err != nil {
		return err
	}
	if like.fit {
		return s.Print(g)
	}
	g.Seed = src.seed
	if like.compare {
		g.Requests = len(requests)
	} else {
		g.Requests, g.Duration = src.requests, src.duration
	}
	made, err := g.Generate()
	if err != nil {
		return err
	}
	if !like.compare {
		if made, err = (trace.Shape{Rate: src.rate}).Apply(made); err != nil {
			return err
		}
		return s.writeTrace(made)
	}
	q := trace.Compare(requests, made)
	if s.JSON {
		return s.Print(q)
	}
	_, err = fmt.Fprint(s.Stdout, q)
	return err
}
