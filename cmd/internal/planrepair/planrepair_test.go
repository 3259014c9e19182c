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
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/testkit"
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
func configFor(urls []string) (c Config, plan *store.Memory, problems *bytes.Buffer) {
	plan, problems = new(store.Memory), new(bytes.Buffer)
	c = Config{
		Store: plan, Name: "the plan", From: urls, Out: new(bytes.Buffer), Problems: problems,
		SetAside: func(context.Context, time.Time) (string, error) { return "", errors.New("nothing is stored") },
	}
	c.Fleet.Fleet = config.Fleet{Models: []config.Model{{Name: "m"}}}
	return c, plan, problems
}

// storedEpoch returns the epoch of what a store has.
func storedEpoch(t *testing.T, s store.Store) policies.Epoch {
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
	c.Store = strictStore{plan}
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

// strictStore is a store that writes nothing when the time is over.
type strictStore struct{ *store.Memory }

func (s strictStore) CompareAndSwap(ctx context.Context, v store.Version, o store.Object) (store.Version, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	return s.Memory.CompareAndSwap(ctx, v, o)
}

// endedStore is a store whose watches end at once.
type endedStore struct{ store.Store }

func (endedStore) Watch(context.Context) <-chan store.Update {
	updates := make(chan store.Update)
	close(updates)
	return updates
}

// TestWatchThatEnds checks that a plan about which nothing is known is not replaced.
func TestWatchThatEnds(t *testing.T) {
	c, plan, _ := configFor([]string{serve(t, follow(7))})
	c.Store = endedStore{plan}
	if err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), "read the plan: the watch has ended") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ctx, c); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if got := storedEpoch(t, plan); got != 0 {
		t.Errorf("the plan was replaced by one of epoch %d", got)
	}
}
