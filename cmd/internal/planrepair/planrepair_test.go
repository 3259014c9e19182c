package planrepair

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/store"
)

// serve runs an admin server until the end of the test, and returns its URL.
func serve(t *testing.T, h http.HandlerFunc) string {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// hang answers nothing until the client gives up, as a host that is gone.
func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// follow returns the answer of a migrator that follows a plan.
func follow(epoch policies.Epoch) http.HandlerFunc {
	plan := policies.Plan{Model: "m", Epoch: epoch, Stages: []policies.Stage{{High: policies.Unbounded, Replicas: []policies.ReplicaID{"a"}}}}
	return func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(Followed{Plans: []policies.Plan{plan}})
	}
}

// configFor returns the repair of an empty store from admin servers.
func configFor(urls []string) (c Config, plan *store.Store, problems *bytes.Buffer) {
	plan, problems = store.New(store.NewMemory()), new(bytes.Buffer)
	c = Config{Store: plan, From: urls, Out: new(bytes.Buffer), Problems: problems}
	c.Fleet.Fleet = config.Fleet{Models: []config.Model{{Name: "m"}}}
	return c, plan, problems
}

// storedEpoch returns the epoch of what a store has.
func storedEpoch(t *testing.T, s *store.Store) policies.Epoch {
	ctx, cancel := context.WithCancel(t.Context())
	updates := s.Watch(ctx)
	u := <-updates
	cancel()
	for range updates {
	}
	testkit.NoError(t, u.Err)
	return u.Object.Epoch
}

// TestServersThatHang checks that admin servers which do not answer keep a repair neither from asking the
// others nor from writing, and that they are named.
func TestServersThatHang(t *testing.T) {
	t.Parallel()
	dead := serve(t, hang)
	c, plan, problems := configFor([]string{dead, serve(t, follow(3)), dead, serve(t, follow(7))})
	ctx, cancel := context.WithTimeout(t.Context(), askTimeout) // half of it is for the answers
	defer cancel()
	testkit.NoError(t, Run(ctx, c))
	if got := storedEpoch(t, plan); got != 7 {
		t.Errorf("epoch %d, want 7", got)
	}
	if got := strings.Count(problems.String(), "not asked: "+dead); got != 2 {
		t.Errorf("problems:\n%s", problems)
	}
}

// TestManyServersThatHang checks that the time of each admin server is bounded: those that wait for
// their turn are asked, too.
func TestManyServersThatHang(t *testing.T) {
	t.Parallel()
	c, plan, _ := configFor(append(slices.Repeat([]string{serve(t, hang)}, askAtOnce), serve(t, follow(7))))
	ctx, cancel := context.WithTimeout(t.Context(), Timeout)
	defer cancel()
	testkit.NoError(t, Run(ctx, c))
	if got := storedEpoch(t, plan); got != 7 {
		t.Errorf("epoch %d, want 7", got)
	}
}

// TestWatchThatEnds checks that a plan about which nothing is known is not replaced.
func TestWatchThatEnds(t *testing.T) {
	c, plan, _ := configFor([]string{serve(t, follow(7))})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ctx, c); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if got := storedEpoch(t, plan); got != 0 {
		t.Errorf("the plan was replaced by one of epoch %d", got)
	}
}
