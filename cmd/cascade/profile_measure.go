package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/profiler"
	"github.com/cascadeinfer/cascade/cmd/internal/progress"
	"github.com/cascadeinfer/cascade/engine/profiling"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/policies"
)

// measureFlags are the flags of "cascade profile measure".
type measureFlags struct {
	record, model, api, lengths string
	headers                     []string
	output, kvTokens            int64
	seconds                     time.Duration
	grid                        profiling.Grid
	mixed                       bool
}

// newProfileMeasure is "cascade profile measure".
func newProfileMeasure(s *settings) *cobra.Command {
	f := &measureFlags{}
	c := &cobra.Command{
		Use:   "measure ENDPOINT",
		Short: "Measure an engine with any OpenAI endpoint, for a cost profile",
		Long: `Measure sends streams of random words to an engine and records when each token comes.
ENDPOINT is its base URL, with or without /v1.

It measures cells: prompts of 100–200, 200–400, 400–800 … tokens, each with 1, 2,
4 … requests in flight. In a cell there are always exactly so many: when one ends, the next
is sent. A cell ends when its mean time per token is known to 2 %, or after --seconds, but
not before as many requests have ended as are in flight at once.

Nothing else may use the engine meanwhile, and nothing may be in between that limits or
batches requests. Random words share no prefix, so that prefix caching does not help; they
are others in every run.

A cell in which the engine never ran all requests at once, in two attempts, is recorded as
queued, and larger ones are left out: so the batches end where the engine's memory or its limit does. For vLLM,
cells that exceed the KV cache are left out from the start, by its metrics. Where this machine is too busy to
read tokens when they come, measure says so, and leaves no cell out.

Each cell is a line of the record file when it has been measured. After Ctrl-C, or when the
engine has failed, the same command goes on where it stopped; the file is usable at any
time. "cascade profile fit" makes a profile of it.

The grid of the paper takes about ten minutes. --factor 4 is coarse: a quarter of the cells,
a few minutes. Generate as many tokens as your requests do (--output): time per token
contains the prompt's part.

--mixed adds cells of one batch size and one sum of lengths, in which one request is longer
than the others, by more and more: for κ, what unequal lengths cost a batch.`,
		Example: `  cascade profile measure http://127.0.0.1:8000 --record engine.jsonl
  cascade profile measure http://127.0.0.1:8000 --record quick.jsonl --factor 4 --seconds 5s --lengths 100:6400
  cascade profile measure http://127.0.0.1:8000 --record engine.jsonl --mixed   # the same grid, and cells for κ`,
		Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			endpoint, err := parseEndpoint(cmd, "ENDPOINT", args[0], "127.0.0.1:8000")
			if err != nil {
				return err
			}
			if err := f.parse(cmd); err != nil {
				return err
			}
			return s.measureEngine(cmd.Context(), endpoint, f)
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.record, "record", "record.jsonl", "file for what is measured; an existing one is continued")
	fl.StringVar(&f.model, "model", "", "model to ask for; default: the first that the endpoint lists")
	fl.StringVar(&f.api, "api", string(profiler.Completions), "endpoint to use: completions or chat")
	fl.StringArrayVar(&f.headers, "header", nil, "header to add to every request, as 'name: value'; may be repeated")
	fl.StringVar(&f.lengths, "lengths", "100:25600", "prompt lengths to measure, from:to in tokens; those beyond the model's context are left out")
	fl.IntVar(&f.grid.MaxBatch, "max-batch", 256, "most requests in flight")
	fl.IntVar(&f.grid.Factor, "factor", 2, "how many times longer, or larger, the next cell is")
	fl.Int64Var(&f.output, "output", 128, "mean number of tokens to generate; requests have half to three halves of it")
	fl.DurationVar(&f.seconds, "seconds", 10*time.Second, "time of a cell that is not steady before")
	fl.Int64Var(&f.kvTokens, "kv-tokens", 0, "tokens that the engine's KV cache holds; default: as vLLM's metrics have it")
	fl.Uint64Var(&f.grid.Seed, "seed", 1, "seed of the lengths")
	fl.BoolVar(&f.mixed, "mixed", false, "also measure batches of unequal lengths, for κ")
	cli.CompleteFrom(c, "api", []string{string(profiler.Completions), string(profiler.Chat)})
	return c
}

// parse translates the flags that are not values by themselves.
func (f *measureFlags) parse(c *cobra.Command) error {
	from, to, ok := strings.Cut(f.lengths, ":")
	low, errLow := strconv.ParseInt(from, 10, 32)
	high, errHigh := strconv.ParseInt(to, 10, 32)
	if !ok || errLow != nil || errHigh != nil {
		return cli.Usagef(c, "--lengths %q: write from:to, such as 100:25600", f.lengths)
	}
	f.grid.Shortest, f.grid.Longest, f.grid.Output = policies.Tokens(low), policies.Tokens(high), policies.Tokens(f.output)
	if err := f.grid.Validate(); err != nil {
		return cli.Usagef(c, "%w", err)
	}
	return nil
}

// measureEngine measures what the record file does not have yet.
func (s *settings) measureEngine(ctx context.Context, endpoint string, f *measureFlags) (err error) {
	header, err := parseHeaders(f.headers)
	if err != nil {
		return err
	}
	log, err := s.Logger()
	if err != nil {
		return err
	}
	c := profiler.Config{Endpoint: endpoint, Model: f.model, API: profiler.API(f.api), Header: header, Grid: f.grid, Seconds: f.seconds.Seconds(), Logger: log}
	served, err := profiler.Discover(ctx, c)
	if err != nil {
		return err
	}
	c.Model, c.Grid.Context, c.Grid.KVTokens = served.Model, served.Context, cmp.Or(policies.Tokens(f.kvTokens), served.KVTokens)
	p, err := profiler.New(c)
	if err != nil {
		return err
	}
	warmed, err := p.WarmUp(ctx)
	if err != nil {
		return err
	}
	for _, note := range warmed.Notes() {
		fmt.Fprintln(s.Stderr, note)
	}
	file, record, err := openRecord(f.record, profiling.Header{
		Format: profiling.Format, Endpoint: endpoint, Model: c.Model, API: string(c.API), Started: time.Now().UTC().Truncate(time.Second),
		Grid: c.Grid, Seconds: c.Seconds, Counted: !warmed.Usage, Stops: !warmed.IgnoreEOS,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	cells := c.Grid.Cells()
	if f.mixed {
		cells = append(cells, c.Grid.MixedCells()...)
	}
	logs, err := s.measureCells(ctx, p, cells, record.Logs, file)
	if err != nil {
		fmt.Fprintf(s.Stderr, "%s has %d of %d cells; the same command goes on from there.\n", f.record, len(logs), len(cells))
		return err
	}
	return s.PrintTable(struct {
		Record string `json:"record"`
		Cells  int    `json:"cells"`
	}{f.record, len(logs)}, report.Cells(logs))
}

// measureCells measures the cells that are not in done, appends each to the file, and returns all.
func (s *settings) measureCells(ctx context.Context, p *profiler.Profiler, cells []profiling.Cell, done []profiling.Log, file io.Writer) ([]profiling.Log, error) {
	fmt.Fprintf(s.Stderr, "%d cells, %d of them measured already; Ctrl-C keeps what has been measured\n", len(cells), len(done))
	bar := progress.New(s.Stderr, "measure", len(cells))
	defer bar.End()
	for i, cell := range cells {
		bar.Describe(fmt.Sprintf("%-28s", cell))
		bar.Set(i)
		if cell.MeasuredIn(done) || cell.Skip(done) {
			continue
		}
		l, err := p.Run(ctx, cell)
		if err == nil && l.Queued() {
			// This machine may only have been busy: a queue shows twice.
			l, err = p.Run(ctx, cell)
		}
		if err == nil {
			err = profiling.AppendLine(file, l)
		}
		if err != nil {
			return done, fmt.Errorf("cell %s: %w", cell, err)
		}
		done = append(done, l)
	}
	bar.Set(len(cells))
	return done, nil
}

// openRecord opens a record file to continue it, or creates it with a header. Until it is closed,
// no other measurement can open it.
func openRecord(path string, h profiling.Header) (*os.File, profiling.Record, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, profiling.Record{}, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errors.New("another measurement is writing this file; name another with --record")
		}
		return nil, profiling.Record{}, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	record, err := profiling.ReadRecord(f)
	if errors.Is(err, io.EOF) {
		record.Header = h
		if err = f.Truncate(0); err == nil {
			if _, err = f.Seek(0, io.SeekStart); err == nil {
				err = profiling.AppendLine(f, h)
			}
		}
		if err == nil {
			return f, record, nil
		}
	}
	if err == nil {
		if err = record.Continues(h); err != nil {
			err = fmt.Errorf("cannot be continued: %w; name another file with --record", err)
		}
	}
	if err == nil { // what follows the last complete line was being written when it was interrupted
		if err = f.Truncate(record.Size); err == nil {
			_, err = f.Seek(record.Size, io.SeekStart)
		}
	}
	if err != nil {
		return nil, profiling.Record{}, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return f, record, nil
}
