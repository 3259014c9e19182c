package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/cmd/internal/adminserver"
	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/policies"
)

// newEngine is "cascade engine": one emulated replica.
func newEngine(s *settings) *cobra.Command {
	var (
		file            fleetFile
		replica, listen string
		model           config.Model
		speed           float64
		tp              int
		ctxLen          int64
		blocks, device  string
		kvSocket        string
		kvEvents        string
	)
	c := &cobra.Command{
		Use:   "engine",
		Short: "Run one emulated inference engine (OpenAI API, vLLM dialect)",
		Long: `Engine serves /v1/completions, /v1/chat/completions, /v1/embeddings, /v1/models,
/tokenize, /detokenize, /health and /metrics like a vLLM replica would, with continuous
batching, prefix caching and iteration times from a measured cost profile. Its
text is meaningless, and depends on every KV byte that it attends to.

Clients of tools, JSON and log probabilities can be tried against it. A chat with tools
calls the first one, and answers its result with text; JSON has the smallest value of
its schema, with the text in the first string; a token's log probability is 0.

With "blocks" in the fleet file, or --blocks, it shows its block table on the socket kv.sock
in that directory, so that its migrator can migrate running requests with their KV.

With "connector" in the fleet file, or --kv-socket, its migrator carries the
KV (a CascadeConnector).

With --kv-events-config it publishes which KV blocks its prefix cache holds, as vLLM does
with the same flag. An endpoint with "*" listens on loopback: events have prompts in them.

With --device cuda its KV is in the memory of a GPU: the one of "gpu" in the fleet file,
else the first. It runs no kernels there.`,
		Example: `  cascade engine -c fleet.yaml --replica r0
  cascade engine --model demo --profile h200-llama-3.1-8b --listen 127.0.0.1:8000
  curl -N 127.0.0.1:8000/v1/completions -d '{"model":"demo","prompt":"hello","max_tokens":20,"stream":true}'`,
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			w, r, field := wiring.Fleet{}, flagReplica("engine", tp), "--listen"
			var err error
			if err := checkEngineFlags(cmd, file.path); err != nil {
				return err
			}
			if file.path == "" {
				w, err = resolveFlags(config.Fleet{Models: []config.Model{model}, Replicas: []config.Replica{r}, Speed: speed})
				r.Model, r.Engine = model.Name, "http://"+listen
			} else if w, err = file.load(cmd); err == nil {
				if r, err = w.Replica(replica); err != nil {
					return cli.Usagef(cmd, "--replica: %w", err)
				}
				field = "engine of replica " + r.ID
			}
			if err != nil {
				return err
			}
			u, err := url.Parse(r.Engine)
			if err != nil {
				return err
			}
			log, err := s.Logger()
			if err != nil {
				return err
			}
			gpus := newGPUs(nil)
			memory, err := gpus.PoolAllocator(device, r.GPU)
			if err != nil {
				return err
			}
			e := w.Engine(r, log)
			e.Blocks, e.Device = cmp.Or(blocks, w.Blocks(r)), memory
			if dir := cmp.Or(kvSocket, w.Connector(r)); dir != "" {
				e.KVSocket = &emulator.KVSocket{Dir: dir}
			}
			if kvEvents != "" {
				events, err := emulator.ParseKVEvents(kvEvents)
				if err != nil {
					return errors.Join(fmt.Errorf("--kv-events-config: %w", err), gpus.Close())
				}
				e.KVEvents = &events
			}
			return errors.Join(s.runEngine(cmd.Context(), field, u.Host, e), gpus.Close())
		},
	}
	f := c.Flags()
	file.flag(c, "fleet file; with --replica, everything else comes from it")
	file.replicaFlag(c, &replica)
	f.StringVar(&model.Name, "model", "demo", "name of the served model")
	f.StringVar(&model.Profile, "profile", "h200-llama-3.1-8b", "cost profile: built-in name or JSON file (see \"cascade profile\")")
	cli.CompleteFrom(c, "profile", cost.Names())
	f.StringVar(&listen, "listen", "127.0.0.1:8000", "address to serve on")
	f.Float64Var(&speed, "speed", 1, "run this many times faster than the real engine")
	f.IntVar(&tp, "tp", 1, "tensor-parallel ranks")
	f.Int64Var(&ctxLen, "context", 131072, "longest sequence in tokens")
	f.StringVar(&blocks, "blocks", "", "private directory for kv.sock with the block table, instead of \"blocks\" of the fleet file")
	f.StringVar(&kvSocket, "kv-socket", "", "private directory for the socket of a CascadeConnector, instead of \"connector\" of the fleet file")
	f.StringVar(&kvEvents, "kv-events-config", "", "KV events, in the JSON of vLLM's flag of this name; \"\" is none")
	deviceFlag(c, &device)
	c.PreRun = func(*cobra.Command, []string) { model.Context = policies.Tokens(ctxLen) }
	return c
}

// checkEngineFlags refuses the flags that describe an engine beside a file, and --replica without one: they would have
// no effect.
func checkEngineFlags(cmd *cobra.Command, path string) error {
	if path == "" {
		return cli.RequireFlag(cmd, "config", "replica")
	}
	return refuseBesideFile(cmd, "an engine", "model", "profile", "listen", "speed", "tp", "context")
}

// runEngine runs an engine. field is the flag, or the field of the fleet file, that has the address.
func (s *settings) runEngine(ctx context.Context, field, listen string, c emulator.Config) error {
	e, err := emulator.New(c)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	s.AnnounceReady(fmt.Sprintf("emulating %s (%s) on http://%s", c.Model, c.Profile.Name, l.Addr()))
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return e.Run(ctx) })
	// A stream may take any time to write.
	g.Go(func() error { return adminserver.ServeOn(ctx, l, e.Handler(), 0, 0) })
	return g.Wait()
}
