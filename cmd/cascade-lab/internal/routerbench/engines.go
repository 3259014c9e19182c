package routerbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/contestant"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
)

// emulated are the engines of one run. Each run has new ones: else a contestant would find the
// prefixes in their caches that the one before it has left there.
type emulated struct {
	engines   []*emulator.Engine
	listeners []net.Listener
	replicas  []contestant.Replica
}

// newEmulated returns engines on free loopback ports that run once run is called. dir is for the
// sockets of their block tables.
func newEmulated(n int, m config.Model, speed float64, dir string, log *slog.Logger) (e *emulated, err error) {
	fleet, err := wiring.Resolve(config.Fleet{Models: []config.Model{m}, Speed: speed}, ".")
	if err != nil {
		return nil, err
	}
	vocabulary, err := model.NewVocabulary()
	if err != nil {
		return nil, err
	}
	e = &emulated{}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	for i := range n {
		c := fleet.Engine(config.Replica{Model: m.Name, TP: 1}, log)
		c.Vocabulary, c.Blocks = vocabulary, filepath.Join(dir, fmt.Sprintf("r%d", i))
		sockets, err := contestant.FreeAddresses(2) // of the KV events
		if err != nil {
			return e, err
		}
		c.KVEvents = &emulator.KVEvents{Enable: true, Endpoint: listenAt(sockets[0]), ReplayEndpoint: listenAt(sockets[1])}
		engine, err := emulator.New(c)
		if err != nil {
			return e, err
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return e, err
		}
		e.engines, e.listeners = append(e.engines, engine), append(e.listeners, l)
		e.replicas = append(e.replicas, contestant.Replica{URL: "http://" + l.Addr().String(), Blocks: c.Blocks, Events: sockets[0], Replay: sockets[1]})
	}
	return e, nil
}

// listenAt returns the endpoint of an engine that listens on the port of a loopback address.
func listenAt(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return "tcp://*:" + port
}

// run runs the engines until ctx ends.
func (e *emulated) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for i, engine := range e.engines {
		g.Go(func() error { return engine.Run(ctx) })
		server := &http.Server{Handler: engine.Handler(), ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)}
		g.Go(func() error {
			defer context.AfterFunc(ctx, func() { server.Close() })()
			if err := server.Serve(e.listeners[i]); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
	}
	return g.Wait()
}

func (e *emulated) close() {
	for _, l := range e.listeners {
		l.Close()
	}
}

// resetCaches empties the prefix caches of engines that stay between runs, by vLLM's endpoint
// for it, which exists if the engine has VLLM_SERVER_DEV_MODE=1 in its environment.
func resetCaches(ctx context.Context, replicas []contestant.Replica) error {
	for _, r := range replicas {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL+"/reset_prefix_cache", nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return fmt.Errorf("empty the prefix cache: %w", err)
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("empty the prefix cache of %s: %s; start the engine with VLLM_SERVER_DEV_MODE=1, or pass -keep-caches", r.URL, resp.Status)
		}
	}
	return nil
}
