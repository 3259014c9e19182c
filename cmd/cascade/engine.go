package main

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/cmd/config"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/policies"
)

// newEngine is "cascade engine": one emulated replica.
func newEngine(s *settings) *cobra.Command {
	var (
		file, replica, listen string
		model                 config.Model
		speed                 float64
		tp                    int
		ctxLen                int64
	)
	c := &cobra.Command{
		Use:   "engine",
		Short: "Run one emulated inference engine (OpenAI API, vLLM dialect)",
		Long: `Engine serves /v1/completions, /v1/chat/completions, /v1/models, /tokenize,
/detokenize, /health and /metrics like a vLLM replica would, with continuous
batching, prefix caching and iteration times from a measured cost profile. Its
text is made of words without sense, and depends on every KV byte it attends to.`,
		Example: `  cascade engine -c fleet.yaml --replica r0
  cascade engine --model demo --profile h200-llama-3.1-8b --listen 127.0.0.1:8000
  curl -N 127.0.0.1:8000/v1/completions -d '{"model":"demo","prompt":"hello","max_tokens":20,"stream":true}'`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			fleet := config.Fleet{Models: []config.Model{model}, Speed: speed}
			dir := "."
			if file != "" {
				f, err := config.Load(file)
				if err != nil {
					return err
				}
				r, err := find(f, replica)
				if err != nil {
					return err
				}
				u, err := url.Parse(r.Engine)
				if err != nil {
					return err
				}
				fleet, dir, listen, tp = f, filepath.Dir(file), u.Host, r.TP
				for _, m := range f.Models {
					if m.Name == r.Model {
						model = m
					}
				}
			}
			return s.runEngine(cmd.Context(), fleet, model, dir, listen, tp)
		},
	}
	f := c.Flags()
	f.StringVarP(&file, "config", "c", "", "fleet file; with --replica, everything else comes from it")
	f.StringVar(&replica, "replica", "", "id of the replica in the fleet file")
	f.StringVar(&model.Name, "model", "demo", "name of the served model")
	f.StringVar(&model.Profile, "profile", "h200-llama-3.1-8b", "cost profile: built-in name or JSON file (see \"cascade profiles\")")
	f.StringVar(&listen, "listen", "127.0.0.1:8000", "address to serve on")
	f.Float64Var(&speed, "speed", 1, "run this many times faster than the real engine")
	f.IntVar(&tp, "tp", 1, "tensor-parallel ranks")
	f.Int64Var(&ctxLen, "context", 131072, "longest sequence in tokens")
	c.PreRun = func(*cobra.Command, []string) { model.Context = policies.Tokens(ctxLen) }
	return c
}

// find returns one replica of a fleet by its id.
func find(f config.Fleet, id string) (config.Replica, error) {
	for _, r := range f.Replicas {
		if r.ID == id {
			return r, nil
		}
	}
	ids := make([]string, len(f.Replicas))
	for i, r := range f.Replicas {
		ids[i] = r.ID
	}
	return config.Replica{}, fmt.Errorf("--replica %q is not in the fleet file; it has %q", id, ids)
}

func (s *settings) runEngine(ctx context.Context, fleet config.Fleet, m config.Model, dir, listen string, tp int) error {
	log, err := s.logger()
	if err != nil {
		return err
	}
	ps, err := fleet.Profiles(dir)
	if err != nil {
		return err
	}
	// The profile of a fleet already runs at the fleet's speed.
	e, err := emulator.New(emulator.Config{Model: m.Name, Profile: ps[m.Name], TensorParallel: tp, Context: m.Context, Logger: log})
	if err != nil {
		return err
	}
	fmt.Fprintf(s.stderr, "emulating %s (%s) on http://%s\n", m.Name, m.Profile, listen)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return e.Run(ctx) })
	g.Go(func() error { return serve(ctx, listen, e.Handler()) })
	return g.Wait()
}
