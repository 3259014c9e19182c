package kvport

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/policies"
)

// What the holder has beyond the own engine is copied, in whole blocks, and only for the same model and salt.
func TestPull(t *testing.T) {
	for _, x := range []struct {
		name       string
		held, have int // tokens that a and b have computed before
		ask        int // ids of the prefix
		salt       string
		tokens     policies.Tokens
		cached     int
		err        error
	}{
		{name: "all of it", held: 24, ask: 24, tokens: 24, cached: 24},
		{name: "whole blocks", held: 23, ask: 23, tokens: 20, cached: 20},
		{name: "the rest of it", held: 24, have: 9, ask: 24, tokens: 16, cached: 24},
		{name: "less than asked for", held: 12, ask: 24, tokens: 12, cached: 12},
		{name: "less than held", held: 24, ask: 17, tokens: 16, cached: 16},
		{name: "the own engine has it", held: 24, have: 24, ask: 24, cached: 24},
		{name: "the own engine has as much", held: 12, have: 12, ask: 24, cached: 12, err: ErrGone},
		{name: "the holder has nothing", have: 4, ask: 24, cached: 4, err: ErrGone},
		{name: "another tenant's", held: 24, ask: 24, salt: "tenant", err: ErrGone},
		{name: "less than a block", held: 24, ask: 3},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := start(t, nil)
			w.a.compute(prefix(x.held, 1))
			w.b.compute(prefix(x.have, 1))
			p := prefix(x.ask, 1)
			p.Salt = x.salt
			pulled, err := w.puller.Pull(t.Context(), "a", p)
			tokens := pulled.Tokens
			if tokens != x.tokens || !errors.Is(err, x.err) {
				t.Errorf("%d tokens, %v; want %d, %v", tokens, err, x.tokens, x.err)
			}
			w.a.check(t, p)
			if cached := w.b.check(t, p); cached != x.cached {
				t.Errorf("%d tokens are cached, want %d", cached, x.cached)
			}
			if s := w.holder.Served(); s.Tokens != uint64(x.tokens) {
				t.Errorf("served %+v", s)
			}
		})
	}
}

// Beyond the limit, pulls and calls of peers are refused, and places are given back.
func TestLimits(t *testing.T) {
	w := start(t, func(_ *world, a, b *CopierConfig) { a.MaxConcurrent, b.MaxConcurrent = 1, 2 })
	w.a.compute(prefix(24, 1))
	hold, held := make(chan struct{}), make(chan struct{}, 4)
	w.afterPull = func(ctx context.Context) error {
		held <- struct{}{}
		<-hold
		return nil
	}
	errs := make(chan error, 3)
	go func() { _, err := w.puller.Pull(t.Context(), "a", prefix(24, 1)); errs <- err }()
	<-held
	// The holder has one place.
	if _, err := w.puller.Pull(t.Context(), "a", prefix(12, 1)); !errors.Is(err, ErrBusy) {
		t.Errorf("the second one: %v", err)
	}
	// The puller has two. It gives a place back once the reservation is released.
	testkit.WaitFor(t, "the second one's place is free", func() bool { return len(w.puller.pulling) == 1 })
	asked := make(chan struct{}, 4)
	w.ask = func(ctx context.Context, _ *api.FetchPrefixRequest, _ func(context.Context, *api.FetchPrefixRequest) (*api.FetchPrefixAnswer, error)) (*api.FetchPrefixAnswer, error) {
		asked <- struct{}{}
		<-hold
		return nil, errors.New("no more")
	}
	go func() { _, err := w.puller.Pull(t.Context(), "a", prefix(8, 2)); errs <- err }()
	<-asked
	if _, err := w.puller.Pull(t.Context(), "a", prefix(8, 3)); !errors.Is(err, ErrBusy) || len(asked) > 0 {
		t.Errorf("the third one: %v", err)
	}
	close(hold)
	<-errs
	<-errs
	w.ask = nil
	testkit.WaitFor(t, "all places are free", func() bool { return len(w.puller.pulling)+len(w.holder.serving) == 0 })
	if s := w.holder.Served(); s.Prefixes != 1 || s.Refused != 1 {
		t.Errorf("%+v", s)
	}
}

func TestNotRunning(t *testing.T) {
	w := start(t, nil)
	c := testkit.Must(NewCopier(CopierConfig{Engine: w.b, Network: w, Paths: w.puller.cfg.Paths}))
	for range defaultConcurrent + 1 { // places are given back
		if _, err := c.Pull(t.Context(), "a", prefix(8, 1)); !errors.Is(err, ErrNoMemory) {
			t.Error(err)
		}
		if err := c.Serve(t.Context(), "a", &api.FetchPrefixRequest{}, nil); status.Code(err) != codes.Unavailable {
			t.Error(err)
		}
	}
	for name, bad := range map[string]CopierConfig{"Engine": {Network: w, Paths: c.cfg.Paths}, "Network": {Engine: w.b, Paths: c.cfg.Paths}, "Paths": {Engine: w.b, Network: w}} {
		if _, err := NewCopier(bad); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}
