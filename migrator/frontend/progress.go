package frontend

import (
	"bytes"
	"context"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/internal/enginestate"
	"github.com/cascadeinfer/cascade/policies"
)

// crowdedShare is the divisor of the KV cache above which a stream that pauses may have been
// preempted: the counts here are not exactly the engine's.
const crowdedShare = 2

// transferTime is for how long KV may still travel once the request to give or to fetch it is over: a
// holder does not know when it is fetched.
const transferTime = enginestate.MinTransferPause

// probeRequest makes an engine generate one token. Its default model answers it.
const probeRequest = `{"prompt":[1],"max_tokens":1,"temperature":0}`

// counterSample is one answer of the engine about its load: a hash of its counters, 0 if it has none, and what it
// says.
type counterSample struct {
	hash    uint64
	metrics engineinfo.Metrics
	err     error // of metrics
	took    time.Duration
	counted policies.Load // at this server when it was asked
}

// engineWork sums the requests at the own engine from which something is to be expected.
// Answers that their reader does not wait for, frozen streams and requests that wait for another
// engine's KV are left out; so are answers that come as a whole, unless the engine's counters show
// how they get on.
func (srv *Server) engineWork(counters bool) (w enginestate.Work) {
	legs, now := srv.registeredLegs(), time.Now()
	if slices.ContainsFunc(legs, (*localLeg).inTransfer) {
		srv.transferred.Store(&now)
	}
	last := srv.transferred.Load()
	w.Transferring = last != nil && now.Sub(*last) < transferTime
	for _, r := range legs {
		if r.frozen.Load() || r.plain && !counters || r.awaitsKV() {
			continue
		}
		if answer := r.answer.Load(); answer != nil && !answer.reads.inCall() {
			continue
		}
		n := r.work.Length()
		if r.passed {
			n = min(n, enginestate.StepTokens) // its counters move with each step
		}
		if r.work.Begun() {
			w.Running++
			w.Held, w.Longest = w.Held+n, max(w.Longest, n)
		} else {
			w.Waiting++
			w.Promised, w.LongestPrompt, w.LongestBody = w.Promised+n, max(w.LongestPrompt, n), max(w.LongestBody, r.body)
		}
	}
	return w
}

// readCounters reads the engine's metrics.
func (srv *Server) readCounters(ctx context.Context, seed maphash.Seed) (s counterSample) {
	ctx, cancel := context.WithTimeout(ctx, srv.cfg.HealthTimeout)
	defer cancel()
	s.counted = srv.tracker.State().Load
	start := time.Now()
	d := srv.dialect()
	c := d.Capabilities()
	text, err := dialect.Get(srv.getFromEngine).Read(ctx, c.LoadPath)
	if s.took = time.Since(start); err != nil {
		s.err = err
		return s
	}
	s.metrics, s.err = d.Load(text)
	s.hash = hashCounters(text, c.Counters, seed)
	return s
}

// hashCounters hashes the lines of an engine's counters. It returns 0 if there are none.
func hashCounters(text []byte, counters []string, seed maphash.Seed) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	found := false
	for line := range bytes.Lines(text) {
		for _, name := range counters {
			if bytes.HasPrefix(line, []byte(name)) {
				h.Write(line)
				found = true
			}
		}
	}
	if !found {
		return 0
	}
	return max(h.Sum64(), 1)
}

// getFromEngine sends a GET request of the server's own to the engine.
func (srv *Server) getFromEngine(ctx context.Context, path string) (*http.Response, error) {
	return srv.probeCall(ctx, http.MethodGet, path, "")
}

// probeGeneration checks that the engine answers a request.
func (srv *Server) probeGeneration(ctx context.Context) error {
	resp, err := srv.probeCall(ctx, http.MethodPost, "/v1/completions", probeRequest)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, maxInspected)); err != nil {
		return err
	}
	if resp.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("a request of one token to the engine: status %s", resp.Status)
	}
	return nil
}

// probeCall sends a request of the server's own to the engine, on a connection of its
// own: an old one may work when the engine takes no new ones any more.
func (srv *Server) probeCall(ctx context.Context, method, path, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, srv.engine.JoinPath(path).String(), strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if req.Close = true; body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	return srv.probe.RoundTrip(req)
}

// FreezeLeg records that a migration has stopped a request at the own engine between two
// steps, or that it goes on: no token is to be expected of it meanwhile. name is the
// engine's for the request.
func (srv *Server) FreezeLeg(name string, frozen bool) {
	for _, r := range srv.registeredLegs() {
		if r.name == name {
			r.frozen.Store(frozen)
		}
	}
}

// updateCrowded records whether the engine may have preempted requests.
func (srv *Server) updateCrowded(l policies.Load) {
	capacity := srv.engineFacts.capacity()
	srv.crowded.Store(capacity <= 0 || l.KV()+l.Promised > capacity/crowdedShare)
}

// Holders returns the peers that hold streams of this server's clients or are
// about to, in no order.
func (srv *Server) Holders() []policies.ReplicaID {
	found := make(map[policies.ReplicaID]struct{})
	srv.EachStream(func(s *Stream) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		found[s.machine.Holder()] = struct{}{}
		found[s.openingAt] = struct{}{}
		return true
	})
	return srv.peersOf(found)
}

// FrontEnds returns the peers whose clients' requests run on the own engine, in
// no order.
func (srv *Server) FrontEnds() []policies.ReplicaID {
	found := make(map[policies.ReplicaID]struct{})
	for _, r := range srv.registeredLegs() {
		found[r.frontEnd] = struct{}{}
	}
	return srv.peersOf(found)
}

func (srv *Server) peersOf(found map[policies.ReplicaID]struct{}) []policies.ReplicaID {
	delete(found, srv.cfg.Replica)
	delete(found, "")
	return slices.Collect(maps.Keys(found))
}

// HandlePeerLoss is called when a peer is gone: the streams that it holds are
// rescued, and what runs here for its clients ends. It does nothing for the own
// replica.
func (srv *Server) HandlePeerLoss(peer policies.ReplicaID) {
	if peer == srv.cfg.Replica {
		return
	}
	srv.EachStream(func(s *Stream) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.openingAt == peer && s.openingCall != nil {
			s.openingCall.abort(errReplicaGone)
		}
		if leg := s.peerLegLocked(); leg != nil && s.machine.Holder() == peer {
			leg.abort(errReplicaGone)
		}
		return true
	})
	srv.cancelLegs(errReplicaGone, func(r *localLeg) bool { return r.frontEnd == peer })
}

// cancelLegs aborts the legs on the own engine that are selected.
func (srv *Server) cancelLegs(why error, selected func(*localLeg) bool) {
	for _, r := range srv.registeredLegs() {
		if selected(r) {
			r.call.abort(why)
		}
	}
}

// PeerProgress returns a number for each peer that holds streams of this server's
// clients. The number changes when the peer has sent something of one of them,
// which shows that it lives.
func (srv *Server) PeerProgress() map[policies.ReplicaID]uint64 {
	calls := make(map[policies.ReplicaID]uint64)
	srv.EachStream(func(s *Stream) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if leg := s.peerLegLocked(); leg != nil {
			calls[s.machine.Holder()] += leg.ahead.reads.calls.Load()
		}
		return true
	})
	return calls
}
