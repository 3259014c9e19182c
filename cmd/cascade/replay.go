package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/enginecounters"
	"github.com/cascadeinfer/cascade/cmd/internal/progress"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/engine/trace"
)

// replayFlags are the flags of "cascade replay" besides the source of requests.
type replayFlags struct {
	target, model, name, host string
	headers                   []string
	engines                   []string
	slo                       string
	timeout                   time.Duration
	http2                     bool
	context                   int64
	speed                     float64
	prompt, out               string
}

// defaultMix is how many requests of a mix are replayed when no flag bounds
// them.
const defaultMix = 1000

// newReplay is "cascade replay": it replays a trace against an endpoint.
func newReplay(s *settings) *cobra.Command {
	src, r := &traceFlags{}, &replayFlags{}
	c := &cobra.Command{
		Use:   "replay --target URL --model NAME",
		Short: "Replay a trace against any OpenAI endpoint",
		Long: `Replay sends the requests of a trace (or a generated mix) at their times, whatever is
outstanding, to any endpoint of the OpenAI API, such as a fleet that "cascade up" runs. It
reports what the clients see: time to the first token, time between
tokens, latency per token, all by length. Latency counts from when a request was due.

--speed compresses the arrivals; results are shown as measured and multiplied. A run whose
machine had less than 30 % idle CPU is marked void.

Of a trace whose prompts share prefixes (hash_ids), prompts share them, too, and the
result has a table of prefix caches: hit rate, its share of the ideal, and the spread of
load. --engines names the engines whose counters show the last.

Mooncake's traces have a clock of 3 s: --spread 3s spreads arrivals within it.

"cascade sim" compares Cascade with other routers on a trace, in virtual time.`,
		Example: `  cascade replay --target http://127.0.0.1:8080 --model llama-3.1-8b --mix mixed --requests 500
  cascade replay --target http://127.0.0.1:8080 --model llama-3.1-8b --trace conversation_trace.jsonl --spread 3s --out results`,
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if src.file == "" && src.requests == 0 && src.duration == 0 {
				src.requests = defaultMix
			}
			if r.target == "" || r.model == "" {
				return cli.Usagef(cmd, "name the endpoint with --target, and with --model the name to put into the requests")
			}
			var err error
			if r.target, err = parseEndpoint(cmd, "--target", r.target, "127.0.0.1:8080"); err != nil {
				return err
			}
			header, err := parseHeaders(r.headers)
			if err != nil {
				return cli.Usagef(cmd, "%w", err)
			}
			slo, err := parseSLO(r.slo)
			if err != nil {
				return cli.Usagef(cmd, "%w", err)
			}
			for i, engine := range r.engines {
				if r.engines[i], err = parseEndpoint(cmd, "--engines", engine, "127.0.0.1:8000"); err != nil {
					return err
				}
			}
			return s.replay(cmd.Context(), src, r, header, slo)
		},
	}
	src.flags(c, 0)
	f := c.Flags()
	f.StringVar(&r.target, "target", "", "base URL of an OpenAI endpoint, such as http://127.0.0.1:8080, with or without /v1")
	f.StringVar(&r.model, "model", "", "model to ask for")
	f.StringVar(&r.name, "name", "", "name of the run in tables and plots; default: the target")
	f.StringVar(&r.host, "host", "", "Host header, for targets that choose the model by it")
	f.StringArrayVar(&r.headers, "header", nil, "header to add to every request, as 'name: value'; may be repeated")
	f.DurationVar(&r.timeout, "timeout", replay.DefaultTimeout, "time for one request, from when it is due")
	f.StringSliceVar(&r.engines, "engines", nil, "base URLs of the engines behind --target, divided by commas: with a trace of shared prefixes, their counters show the spread of load, and the hit rate where answers do not name cached tokens")
	f.StringVar(&r.slo, "slo", "", "show the share of requests within 5, 10 and 20 times these times to the first token and between tokens, such as 200ms,20ms")
	f.BoolVar(&r.http2, "http2", false, "speak HTTP/2 without TLS (h2c) to --target")
	f.Int64Var(&r.context, "context", 131072, "the model's context in tokens; longer requests are dropped")
	f.Float64Var(&r.speed, "speed", 1, "send arrivals this many times faster than real time")
	f.StringVar(&r.prompt, "prompt", string(replay.PromptText), "send prompts as text or as token ids: text or ids")
	f.StringVar(&r.out, "out", "", "directory for plots, tables and per-request records")
	return c
}

// parseHeaders parses header lines.
func parseHeaders(lines []string) (http.Header, error) {
	out := http.Header{}
	for _, line := range lines {
		name, value, ok := strings.Cut(line, ":")
		if !ok || strings.TrimSpace(name) == "" {
			return nil, fmt.Errorf("--header %q: write 'name: value'", line)
		}
		out.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	return out, nil
}

// replay replays the source against a running endpoint.
func (s *settings) replay(ctx context.Context, src *traceFlags, f *replayFlags, header http.Header, slo replay.SLO) (err error) {
	if !(f.speed > 0) || math.IsInf(f.speed, 0) {
		return fmt.Errorf("--speed %v: must be above 0", f.speed)
	}
	requests, name, err := src.readWithin(f.context)
	if err != nil {
		return err
	}
	if f.name == "" {
		f.name = f.target
	}
	records, err := createRecords(f.out, "requests")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, records.Close()) }()
	fmt.Fprintf(s.Stderr, "%d requests of %s at %.1f/s to %s: about %.0f s\n", len(requests), name, trace.Rate(requests)*f.speed,
		f.target, requests[len(requests)-1].At.Seconds()/f.speed)
	bar := progress.New(s.Stderr, "replay", len(requests))
	r, err := replay.New(replay.Config{
		Name: f.name, Target: f.target, Model: f.model, Host: f.host, Header: header, Requests: requests,
		Prompt: replay.Prompt(f.prompt), Speed: f.speed, SLO: slo, Timeout: f.timeout, HTTP2: f.http2, Records: records,
		Progress: func(p replay.Progress) { bar.Set(p.Done) },
	})
	if err != nil {
		return err
	}
	res, err := s.runReplay(ctx, r, f.engines, nil, requests, f.speed)
	bar.End()
	if err != nil && !res.Interrupted {
		return err
	}
	return errors.Join(err, s.showReplay(res, f.out))
}

// runReplay runs r. If prompts share prefixes, it watches the counters of engines meanwhile, if there are any. stages
// returns the stage of each engine; nil: all are in one.
func (s *settings) runReplay(
	ctx context.Context, r *replay.Replay, engines []string, stages func() []int, requests []trace.Request, speed float64,
) (replay.Result, error) {
	if len(engines) == 0 || !trace.NamesPrefixes(requests) {
		return r.Run(ctx)
	}
	log, err := s.Logger()
	if err != nil {
		return replay.Result{}, err
	}
	return enginecounters.Replay(ctx, enginecounters.Config{
		Engines: engines, Speed: speed, Arrivals: arrivalTime(requests, speed), Stages: stages,
	}, r, log)
}

// showReplay prints one run, and writes it into dir unless dir is empty.
func (s *settings) showReplay(res replay.Result, dir string) error {
	results := []replay.Result{res}
	if dir != "" {
		if err := writeResults(dir, results, nil); err != nil {
			return err
		}
	}
	if s.JSON {
		if err := s.Print(res); err != nil {
			return err
		}
	} else {
		tables := resultTables(results)
		if len(res.Stages) > 0 {
			tables = append(tables, report.Stages(res))
		}
		if err := report.WriteTables(s.Stdout, tables...); err != nil {
			return err
		}
		if dir != "" {
			fmt.Fprintf(s.Stdout, "\nPlots, requests and results are in %s.\n", dir)
		}
	}
	if n := res.Failed(); n > 0 {
		return fmt.Errorf("%d of %d requests failed; first: %s: %s", n, res.Sent, res.Failures[0].Kind, res.Failures[0].First)
	}
	return nil
}
