package frontend

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

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

// migrateEdited migrates a stream without a reservation, as an edited message asks, once it can.
func (f *fleet) migrateEdited(stream string, to int, edit func(*Migration)) (moved MigrationResult) {
	f.t.Helper()
	waitFor(f.t, func() bool {
		h, r, ok := f.findLeg(stream)
		if !ok {
			return false
		}
		m := f.idMigration(stream, h, r, to)
		edit(&m)
		var err error
		moved, err = f.servers[0].Migrate(f.t.Context(), m)
		return err == nil
	})
	return moved
}

// TestHandoffNotTried moves a stream between engines that are known to be unable to hand over:
// neither is asked. Peers that do not say what they have are tried.
func TestHandoffNotTried(t *testing.T) {
	nixl := engineinfo.KVConnector{Presence: engineinfo.Present, Name: "nixl"}
	other := engineinfo.KVConnector{Presence: engineinfo.Present, Name: "CascadeConnector"}
	none := engineinfo.KVConnector{Presence: engineinfo.Absent}
	for name, test := range map[string]struct {
		change func(*Migration)
		tried  bool
	}{
		"the same connector": {func(m *Migration) { m.FromConnector, m.ToConnector = nixl, nixl }, true},
		"older peers": {func(m *Migration) {
			m.FromConnector, m.ToConnector = engineinfo.KVConnector{}, engineinfo.KVConnector{}
		}, true},
		"none at the target":    {func(m *Migration) { m.ToConnector = none }, false},
		"none at the holder":    {func(m *Migration) { m.FromConnector = none }, false},
		"another at the target": {func(m *Migration) { m.FromConnector, m.ToConnector = nixl, other }, false},
		"a busy holder":         {func(m *Migration) { m.FromBusy = true }, false},
		"an unreachable holder": {func(m *Migration) { m.FromAddress = "" }, false},
	} {
		runInBubble(t, name, func(t *testing.T) {
			f, c := newHandoffFleet(t, 3, nil)
			b := f.startSlowStream(longRequest)
			f.engines[1].slowLegs("#2")
			if moved, err := f.handOff(b.id, 1); err != nil || !moved.Handoff {
				t.Fatalf("to the first holder: %+v, %v", moved, err)
			}
			asked, fetched := c.asked.Load(), c.fetched.Load()
			moved := f.migrateEdited(b.id, 2, test.change)
			if moved.Handoff != test.tried || (c.asked.Load() > asked) != test.tried || (c.fetched.Load() > fetched) != test.tried {
				t.Errorf("handoff %v, asked %d times, fetched %d times; want tried: %v", moved.Handoff, c.asked.Load()-asked, c.fetched.Load()-fetched, test.tried)
			}
			f.requireAnswer(b)
		})
	}
}

// TestHandoffOfOwnEngine moves streams from and to the own engine, of which the server knows
// better than the messages say.
func TestHandoffOfOwnEngine(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*engineFacts)
		from   bool
	}{
		"a queue":                 {func(s *engineFacts) { s.load, s.loadAt = policies.EngineLoad{Waiting: 1, Queued: 1}, time.Now() }, true},
		"no connector":            {func(s *engineFacts) { s.info.Connector = engineinfo.Absent }, true},
		"no connector, to itself": {func(s *engineFacts) { s.info.Connector = engineinfo.Absent }, false},
	} {
		runInBubble(t, name, func(t *testing.T) {
			f, c := newHandoffFleet(t, 2, nil)
			b := f.startSlowStream(longRequest)
			f.engines[1].slowLegs("#2")
			to := 1
			if !test.from {
				if moved, err := f.handOff(b.id, 1); err != nil || !moved.Handoff {
					t.Fatalf("to the peer: %+v, %v", moved, err)
				}
				to = 0
			}
			asked := c.asked.Load()
			state := f.servers[0].engineFacts
			state.mu.Lock()
			test.change(state)
			state.mu.Unlock()
			moved := f.migrateEdited(b.id, to, func(m *Migration) {
				m.FromConnector, m.ToConnector, m.FromBusy = engineinfo.KVConnector{}, engineinfo.KVConnector{}, false
			})
			if moved.Handoff || c.asked.Load() != asked {
				t.Errorf("%+v; asked %d times", moved, c.asked.Load()-asked)
			}
			f.requireAnswer(b)
		})
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

// TestNoteConnector checks what the answers to requests for a handover show of an engine.
func TestNoteConnector(t *testing.T) {
	srv := &Server{engineFacts: newEngineFacts(Config{})}
	for _, test := range []struct {
		err  error
		want engineinfo.Presence
	}{{context.DeadlineExceeded, engineinfo.Unknown}, {fmt.Errorf("r0: %w", engineinfo.ErrNoConnector), engineinfo.Absent}, {errors.New("busy"), engineinfo.Absent}, {nil, engineinfo.Present}} {
		if srv.noteConnector("", test.err); srv.Engine().Connector != test.want {
			t.Errorf("after %v: %v, want %v", test.err, srv.Engine().Connector, test.want)
		}
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
