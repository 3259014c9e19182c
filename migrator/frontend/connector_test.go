package frontend

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/internal/handoff"
	"github.com/cascadeinfer/cascade/policies"
)

// TestKVConnector checks what a server learns of its engine's KV connector at the start: from its
// metrics, or else from its answer to a request for a handover.
func TestKVConnector(t *testing.T) {
	own := replacing(`{"do_remote_prefill"`, `{"kv_connector":"CascadeConnector","do_remote_prefill"`)
	for name, test := range map[string]struct {
		connector *connector
		want      engineinfo.KVConnector
	}{
		"metrics": {&connector{}, engineinfo.KVConnector{Presence: engineinfo.Present, Name: "nixl"}},
		"answer":  {&connector{hidden: true, lie: own}, engineinfo.KVConnector{Presence: engineinfo.Present, Name: "CascadeConnector"}},
		"unnamed": {&connector{hidden: true}, engineinfo.KVConnector{Presence: engineinfo.Present}},
		"none":    {nil, engineinfo.KVConnector{Presence: engineinfo.Absent}},
	} {
		runInBubble(t, name, func(t *testing.T) {
			e := newEngine(t)
			if e.connector = test.connector; e.connector != nil {
				e.connector.kept = make(map[string][]uint32)
			}
			f := newFleetOf(t, []*engine{e}, allowHandoff(nil))
			if got, busy := f.servers[0].KVConnector(); got != test.want || busy {
				t.Errorf("%+v, busy %v; want %+v", got, busy, test.want)
			}
			time.Sleep(time.Second)
			if n := e.calls.Load(); n > 1 || name == "metrics" && n > 0 {
				t.Errorf("the engine was asked %d times", n)
			}
			if n := newFleetOf(t, []*engine{e}, nil).engines[0].calls.Load(); n > 1 {
				t.Error("the engine was asked although no handoff is allowed")
			}
		})
	}
}

// TestConnectorAskedAgain lets the first request for a handover take too long.
func TestConnectorAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		proceed := e.blockAt(0)
		f := newFleetOf(t, []*engine{e}, allowHandoff(func(c *Config) { c.HealthTimeout = time.Second })).servers[0]
		if has := f.Engine().Connector; has != engineinfo.Unknown {
			t.Errorf("an engine that does not answer: %v", has)
		}
		close(proceed)
		waitFor(t, func() bool { return f.Engine().Connector == engineinfo.Absent })
	})
}

// TestCheckHandoff checks between which engines a handoff is tried. Of peers that do not say what they have it is. Of
// its own engine the server knows better than the messages say.
func TestCheckHandoff(t *testing.T) {
	unknown, none := engineinfo.KVConnector{}, engineinfo.KVConnector{Presence: engineinfo.Absent}
	nixl := engineinfo.KVConnector{Presence: engineinfo.Present, Name: "nixl"}
	other := engineinfo.KVConnector{Presence: engineinfo.Present, Name: "CascadeConnector"}
	own, r1, r2 := policies.Target{}, policies.Target{Replica: "r1", Address: "x:1"}, policies.Target{Replica: "r2", Address: "x:2"}
	for name, test := range map[string]struct {
		m      Migration
		change func(*engineFacts)
		tried  bool
	}{
		"the same connector":    {Migration{From: "r1", FromAddress: "x:1", To: r2, FromConnector: nixl, ToConnector: nixl}, nil, true},
		"older peers":           {Migration{From: "r1", FromAddress: "x:1", To: r2}, nil, true},
		"none at the target":    {Migration{From: "r1", FromAddress: "x:1", To: r2, FromConnector: nixl, ToConnector: none}, nil, false},
		"none at the holder":    {Migration{From: "r1", FromAddress: "x:1", To: r2, FromConnector: none, ToConnector: nixl}, nil, false},
		"another at the target": {Migration{From: "r1", FromAddress: "x:1", To: r2, FromConnector: nixl, ToConnector: other}, nil, false},
		"a busy holder":         {Migration{From: "r1", FromAddress: "x:1", To: r2, FromBusy: true}, nil, false},
		"that keeps the KV":     {Migration{From: "r1", FromAddress: "x:1", To: r2, FromBusy: true, KeepsKV: true}, nil, true},
		"an unreachable holder": {Migration{From: "r1", To: r2}, nil, false},
		"the own engine":        {Migration{From: "r0", To: r1, FromConnector: none, FromBusy: true}, nil, true},
		"with a queue": {Migration{From: "r0", To: r1}, func(s *engineFacts) {
			s.load, s.loadAt = policies.EngineLoad{Waiting: 1, Queued: 1}, time.Now()
		}, false},
		"without a connector": {Migration{From: "r0", To: r1, FromConnector: nixl}, func(s *engineFacts) { s.info.Connector = engineinfo.Absent }, false},
		"to one without": {Migration{From: "r1", FromAddress: "x:1", To: own, FromConnector: unknown, ToConnector: nixl}, func(s *engineFacts) {
			s.info.Connector = engineinfo.Absent
		}, false},
	} {
		srv := testkit.Must(New(Config{Replica: "r0", Engine: "http://127.0.0.1:1", Edges: []policies.Tokens{0}, Handoff: true}))
		if test.change != nil {
			test.change(srv.engineFacts)
		}
		if err := srv.checkHandoff(test.m, time.Now()); (err == nil) != test.tried {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestConnectorsLearn checks for how long an engine that hands nothing over is left alone.
func TestConnectorsLearn(t *testing.T) {
	var c backoffs
	now := time.Now()
	until := func(to policies.ReplicaID, want time.Duration) {
		t.Helper()
		if want > 0 && c.mayHandOff("a", to, now.Add(want-1)) || !c.mayHandOff("a", to, now.Add(want)) {
			t.Errorf("a to %s is not tried again after %v", to, want)
		}
	}
	late := fmt.Errorf("a: %w", context.DeadlineExceeded)
	for _, want := range []time.Duration{2, 4, 8, 16, 32, 64, 120, 120} {
		c.learn("a", "b", handoff.KeepKV, late, now)
		until("b", want*time.Second)
		until("c", want*time.Second)
	}
	c.learn("a", "c", handoff.KeepKV, nil, now)
	until("b", 0)
	c.learn("a", "b", handoff.KeepKV, late, now)
	until("b", silentRetry)
	c.learn("a", "b", handoff.CopyKV, late, now)
	until("b", fetchRetry)
	until("c", silentRetry)
	c.learn("a", "b", handoff.KeepKV, engineinfo.ErrNoConnector, now)
	until("c", connectorRetry)
	c.forget("a")
	for _, err := range []error{errors.New("odd"), handoff.ErrHolderLost, context.Canceled} {
		c.learn("a", "b", handoff.KeepKV, err, now)
		until("b", 0)
	}
}

// An answer without parameters means that a Cascade connector has no migrator at the moment; other engines have no
// connector.
func TestCheckNull(t *testing.T) {
	gone := errors.New("gone")
	for _, c := range []struct {
		name      string
		err, want error
	}{
		{engineinfo.Cascade, engineinfo.ErrNoConnector, errNotConnected}, {"nixl", engineinfo.ErrNoConnector, engineinfo.ErrNoConnector},
		{"", engineinfo.ErrNoConnector, engineinfo.ErrNoConnector}, {engineinfo.Cascade, gone, gone}, {engineinfo.Cascade, nil, nil},
	} {
		if got := checkNull(engineinfo.KVConnector{Name: c.name}, c.err); got != c.want {
			t.Errorf("%q, %v: %v", c.name, c.err, got)
		}
	}
}
