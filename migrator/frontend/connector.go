package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/internal/handoff"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
)

const (
	connectorRetry = 10 * time.Minute // before an engine without a KV connector is asked again
	fetchRetry     = time.Minute      // before two engines between which a handoff failed are tried again
	silentRetry    = 2 * time.Second  // before an engine that did not answer in time is asked again; doubles each time
	maxSilentRetry = 2 * time.Minute
	maxBackoffs    = 1 << 12 // when there are so many, all are dropped
)

// KVConnector returns what is known of the KV connector of this replica's engine, and whether the
// engine is so busy that a handoff would take longer than a reprompt.
func (srv *Server) KVConnector() (c engineinfo.KVConnector, busy bool) {
	return srv.Engine().KVConnector(), srv.EngineLoad().Busy()
}

// errNoHandoff says that Config allows no handoff.
var errNoHandoff = errors.New("handoffs are turned off")

// checkHandoff returns nil if a handoff may be tried, or the reason why not. It considers the
// configuration, what is known of the two engines, and what became of earlier handoffs.
func (srv *Server) checkHandoff(m Migration, now time.Time) error {
	to := srv.replicaOf(m.To)
	m.FromConnector, m.FromBusy = srv.holderConnector(m)
	switch {
	case !srv.cfg.Handoff:
		return errNoHandoff
	case m.From == srv.cfg.Replica:
	case m.FromAddress == "":
		return errors.New("the holder's address is not known")
	case to == srv.cfg.Replica:
		m.ToConnector, _ = srv.KVConnector()
	}
	// A request that keeps its KV has no reprompt to fall back on, and the prefill replica that it
	// leaves is often busy.
	if m.FromBusy && !m.KeepsKV {
		return errors.New("the holder's engine has a queue or hardly any free KV")
	}
	if err := engineinfo.CheckHandoff(m.FromConnector, m.ToConnector); err != nil {
		return err
	}
	if !srv.backoffs.mayHandOff(m.From, to, now) {
		return errors.New("an earlier handoff of these engines failed; it is tried again later")
	}
	return nil
}

// holderConnector returns what is known of the KV connector of a migration's holder, and whether its
// engine is busy.
func (srv *Server) holderConnector(m Migration) (c engineinfo.KVConnector, busy bool) {
	if m.From == srv.cfg.Replica {
		return srv.KVConnector()
	}
	return m.FromConnector, m.FromBusy
}

// errNotConnected is the answer without parameters of an engine whose connector is known.
var errNotConnected = errors.New("the engine's KV connector was not connected to its migrator")

// checkNull returns err, or errNotConnected where the answer of a Cascade connector has no parameters: that lasts for a
// moment, so its engine is not left alone as one without a connector.
func checkNull(c engineinfo.KVConnector, err error) error {
	if c.Name == engineinfo.Cascade && errors.Is(err, engineinfo.ErrNoConnector) {
		return errNotConnected
	}
	return err
}

// askConnector asks this replica's engine to hand over the KV of one token, unless it is known
// already whether it has a KV connector. It returns an error if the engine does not answer; an
// answer other than 200 leaves the question open.
func (srv *Server) askConnector(ctx context.Context) error {
	if !srv.cfg.Handoff || srv.Engine().Connector != engineinfo.Unknown {
		return nil
	}
	kv := srv.kv()
	resp, err := srv.probeCall(ctx, http.MethodPost, "/v1/completions", string(kv.Keep(new(openai.Resume), []uint32{1})))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxInspected))
	if err != nil {
		return fmt.Errorf("POST /v1/completions of the engine: %w", err)
	}
	if resp.StatusCode == http.StatusOK {
		_, connector, err := kv.Kept(answer, 1)
		srv.noteConnector(connector, err)
	}
	return nil
}

// noteConnector records what this replica's engine says of its KV connector, as dialect.KV.Kept returns it.
func (srv *Server) noteConnector(name string, err error) {
	switch {
	case err == nil:
		srv.engineFacts.setConnector(engineinfo.Present, name)
	case errors.Is(err, engineinfo.ErrNoConnector):
		srv.engineFacts.setConnector(engineinfo.Absent, "")
	}
}

// backoffs are the engines, and the pairs of engines, with which no handoff is tried for a while
// because one failed. The zero value has none.
type backoffs struct {
	mu    sync.Mutex
	pairs map[enginePair]backoff
}

// backoff is the time until which no handoff is tried, and the delay that led to it.
type backoff struct {
	until time.Time
	delay time.Duration
}

// enginePair is the engines of two replicas; to is "" for from alone.
type enginePair struct{ from, to policies.ReplicaID }

// mayHandOff reports whether a handoff may be tried.
func (b *backoffs) mayHandOff(from, to policies.ReplicaID, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !slices.ContainsFunc([]enginePair{{from: from}, {from: to}, {from, to}}, func(p enginePair) bool { return now.Before(b.pairs[p].until) })
}

// learn updates the backoffs by what became of an action. An engine without a KV connector, and
// one that does not answer KeepKV in time, is left alone; so is a pair of which the target fetches
// nothing. A KeepKV that succeeds ends its engine's backoff. Other errors say nothing of engines.
func (b *backoffs) learn(from, to policies.ReplicaID, kind handoff.ActionKind, err error, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	pair, delay := enginePair{from: from}, connectorRetry
	switch {
	case err == nil && kind == handoff.KeepKV:
		delete(b.pairs, pair)
		return
	case err == nil || errors.Is(err, handoff.ErrHolderLost) || errors.Is(err, errReplicaGone) || errors.Is(err, context.Canceled):
		return
	case errors.Is(err, engineinfo.ErrNoConnector):
	case kind == handoff.KeepKV && errors.Is(err, context.DeadlineExceeded):
		delay = min(max(silentRetry, 2*b.pairs[pair].delay), maxSilentRetry)
	case kind == handoff.CopyKV || kind == handoff.OpenHandoff:
		pair.to, delay = to, fetchRetry
	default:
		return
	}
	if b.pairs == nil || len(b.pairs) >= maxBackoffs {
		b.pairs = make(map[enginePair]backoff)
	}
	b.pairs[pair] = backoff{now.Add(delay), delay}
}

// forget forgets what is known of a replica's engine, which is another one now.
func (b *backoffs) forget(replica policies.ReplicaID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for p := range b.pairs {
		if p.from == replica || p.to == replica {
			delete(b.pairs, p)
		}
	}
}
