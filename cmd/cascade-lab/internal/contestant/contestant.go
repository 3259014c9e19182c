// Package contestant starts routers in front of engines that run already: those that users
// would pick, each with its own defaults, and Cascade in several configurations.
//
// New returns a Router, which Use runs for the time of a measurement:
//
//	r, err := c.New(tools, engines, log)
//	err = contestant.Use(ctx, r, func(ctx context.Context, url string) error { … })
//
// Every contestant gets the same engines and differs from its defaults only by what its
// Settings say: addresses, and limits that would refuse requests which others serve.
package contestant

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// startTimeout bounds the start of a router; the Python ones take up to 12 s.
const startTimeout = 60 * time.Second

// Engines are the engines behind a contestant.
type Engines struct {
	Model   string
	Context policies.Tokens // the model's longest sequence
	Profile string          // the cost profile by which Cascade plans, a built-in one's name or a file
	Speed   float64         // of the engines, relative to real ones
	// History is a file of earlier requests, from which Cascade makes its first plan; empty:
	// none.
	History string
	// Replicas are the engines, at least one.
	Replicas []Replica
}

// Replica is one engine.
type Replica struct {
	URL    string // base URL without /v1, on loopback
	Blocks string // directory of its block table; empty: it has none
	// Events and Replay are the addresses, host:port on loopback, where it publishes its KV events and
	// repeats past ones; empty: nothing is known of them.
	Events, Replay string
}

// Tools are paths of the programs to start. Those of contestants that do not run may be
// empty. With an Envoy it carries Cascade's traffic, too; without one the embedded proxy
// does.
type Tools struct {
	Envoy  string
	VLLM   string // the Python interpreter that has vllm_router
	SGLang string // the Python interpreter that has sglang_router
}

// Router is a contestant in front of engines.
type Router interface {
	// URL returns the base URL for clients.
	URL() string
	// Ready waits until the router serves with all of its engines.
	Ready(ctx context.Context) error
	// Run runs the router until ctx ends or it fails.
	Run(ctx context.Context) error
}

// StagesOf returns the stage of each of n engines behind a router, in their order: numbers below 0 are
// none. Without stages all are in one.
func StagesOf(r Router, n int) []int {
	if staged, ok := r.(interface{ Stages() []int }); ok {
		return staged.Stages()
	}
	return make([]int, n)
}

// Contestant is one way of distributing requests.
type Contestant struct {
	Name string // in flags and file names
	// Settings is everything that is set besides addresses. Results with other settings
	// are those of another contestant.
	Settings string
	start    func(Tools, Engines, *slog.Logger) (Router, error)
}

// All returns the contestants, Cascade first.
func All() []Contestant {
	all := []Contestant{
		cascade("cascade", variant{}),
		cascade("cascade-one-stage", variant{oneStage: true}),
		cascade("cascade-without-moves", variant{moves: config.MigrationPlace}),
		cascade("cascade-paper", variant{preset: "paper"}),
	}
	for _, policy := range []string{"cache_aware", "power_of_two", "consistent_hash", kvAware} {
		all = append(all, vllmRouter(policy))
	}
	return append(all, sglangRouter("cache_aware"), envoy("LEAST_REQUEST"))
}

// Named returns the contestants with these names, in their order.
func Named(names []string) ([]Contestant, error) {
	var out []Contestant
	all, known := All(), []string{}
	for _, c := range all {
		known = append(known, c.Name)
	}
	for _, name := range names {
		before := len(out)
		for _, c := range all {
			if c.Name == name {
				out = append(out, c)
			}
		}
		if len(out) == before {
			return nil, fmt.Errorf("contestant %q: must be one of %s", name, strings.Join(known, ", "))
		}
	}
	return out, nil
}

// New returns the contestant in front of the engines, and starts nothing.
func (c Contestant) New(t Tools, e Engines, log *slog.Logger) (Router, error) {
	e.Speed = cmp.Or(e.Speed, 1)
	r, err := c.start(t, e, log)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	return r, nil
}

// Use runs r until use, which is called once r is ready, returns. It returns after r has
// ended.
func Use(ctx context.Context, r Router, use func(ctx context.Context, url string) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan error, 1)
	go func() {
		err := r.Run(ctx)
		if err != nil {
			cancel(err)
		}
		ended <- err
	}()
	ready, stop := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready within %v", startTimeout))
	err := r.Ready(ready)
	stop()
	if err == nil {
		err = use(ctx, r.URL())
	}
	cancel(nil)
	if failed := <-ended; failed != nil && !errors.Is(err, failed) {
		err = errors.Join(err, failed)
	}
	return err
}

// FreeAddresses returns loopback addresses outside the range of ephemeral ports, so that no
// client's connection takes one before the router does.
func FreeAddresses(n int) ([]string, error) {
	f := &failer{}
	addresses := testkit.Addresses(f, n)
	return addresses, f.err
}

type failer struct{ err error }

func (f *failer) Fatalf(format string, args ...any) { f.err = fmt.Errorf(format, args...) }
