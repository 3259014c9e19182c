package frontend

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/dialect/known"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
)

const (
	maxAsks = 5 // times that an engine is asked what it is, if it leaves a question without an answer
	// engineLoadAge is the age beyond which an engine's report of its load does not count. A
	// busy engine reports rarely: its load must not be unknown in between.
	engineLoadAge = engineinfo.MaxInterval + 10*time.Second
)

// engineFacts is what the server knows of its engine: what it is, and what it reports of its
// load. It is safe for concurrent use.
type engineFacts struct {
	// Fixed.
	model           string
	context         policies.Tokens
	stated, assumed policies.Tokens // size of the KV cache; at most one is not 0
	start           time.Time
	dialects        []dialect.Dialect

	spoken         atomic.Pointer[dialect.Dialect]
	tokensPerChunk atomic.Int64
	withoutIDs     [2]atomic.Bool // by endpoint: the engine refuses to return token ids
	promptDetails  atomic.Uint32  // an engineinfo.Presence

	mu          sync.Mutex
	info        engineinfo.Info // without what is counted above
	mismatch    error           // why the engine is not the expected one; nil if it is
	asks        int             // since it started
	complete    bool            // all questions were answered
	pace        engineinfo.Pace
	load        policies.EngineLoad // as last reported
	queued      int                 // requests in the queue at the last report
	loadAt      time.Time           // zero: never
	correction  policies.Tokens     // of the lengths counted here, to get the KV in use
	processFrom float64             // when the engine's process started, by its metrics
	warned      string              // the last warning of another capacity
}

func newEngineFacts(cfg Config) *engineFacts {
	s := &engineFacts{model: cfg.Model, context: cfg.Context, start: time.Now(), dialects: cfg.Dialects}
	if s.dialects == nil {
		s.dialects = known.Dialects()
	}
	s.spoken.Store(&s.dialects[0])
	if s.assumed = cfg.KVTokens; cfg.KVStated {
		s.stated, s.assumed = cfg.KVTokens, 0
	}
	return s
}

// dialect returns the dialect that the engine speaks.
func (srv *Server) dialect() dialect.Dialect { return *srv.engineFacts.spoken.Load() }

// kv is dialect for what concerns the KV of requests.
func (srv *Server) kv() dialect.KV { return dialect.KVOf(srv.dialect()) }

// Engine returns what is known of the engine.
func (srv *Server) Engine() engineinfo.Info {
	s := srv.engineFacts
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.info
	for _, e := range [...]openai.Endpoint{openai.Completions, openai.Chat} {
		if s.refusesIDs(e) {
			i.RefusesTokenIDs = append(i.RefusesTokenIDs, e.Path())
		}
	}
	i.TokensPerChunk, i.PromptDetails = int(s.tokensPerChunk.Load()), engineinfo.Presence(s.promptDetails.Load())
	if srv.cfg.KVConnector != nil {
		c := srv.cfg.KVConnector()
		i.Connector, i.ConnectorName, i.Layout = c.Presence, c.Name, c.Layout
	}
	return i
}

// EngineLoad returns what the engine reports of its load; the zero value if it reports none.
func (srv *Server) EngineLoad() policies.EngineLoad {
	return srv.engineFacts.addLoad(srv.tracker.State().Load, time.Now()).Engine
}

// setConnector records whether the engine has answered a request for a handover with its
// parameters, and the connector's name, "" for none: that is how an engine shows that it has no
// KV connector.
func (s *engineFacts) setConnector(has engineinfo.Presence, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.info.Connector, s.info.ConnectorName = has, cmp.Or(name, s.info.ConnectorName)
}

// learnEngine asks the engine what it is, if it has just started or left a question without
// an answer. It returns why it is not the expected one.
func (srv *Server) learnEngine(ctx context.Context, started bool) error {
	s := srv.engineFacts
	if !s.beginAsking(started) {
		return s.mismatched()
	}
	// What it does not answer now must not make its health check late.
	asking, cancel := context.WithTimeout(ctx, srv.cfg.HealthTimeout/4)
	defer cancel()
	info, spoken, err := dialect.Ask(asking, srv.getFromEngine, s.dialects)
	if spoken != nil {
		s.spoken.Store(&spoken)
	}
	mismatch, isNew := s.learn(info, err == nil)
	if failed := srv.askConnector(asking); failed != nil {
		s.askAgain()
		err = errors.Join(err, failed)
	}
	if isNew {
		srv.log.Warn("engine does not match the fleet file; refusing requests", "problem", mismatch)
	}
	srv.applyCapacity()
	srv.log.Debug("engine asked what it is", "kind", srv.dialect().Capabilities().Name, "version", info.Version, "kv_tokens", info.KVTokens, "connector", srv.Engine().Connector, "error", err)
	return mismatch
}

// beginAsking reports whether the engine is to be asked now. If it has started, what was known
// of it is forgotten.
func (s *engineFacts) beginAsking(started bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if started {
		s.forgetLocked()
	}
	if s.complete || s.asks >= maxAsks {
		return false
	}
	s.asks++
	return true
}

// forgetLocked forgets the engine, with s.mu held: another life of it begins.
func (s *engineFacts) forgetLocked() {
	s.info = engineinfo.Info{Start: s.info.Start + 1}
	s.asks, s.complete, s.load, s.queued, s.loadAt, s.processFrom = 0, false, policies.EngineLoad{}, 0, time.Time{}, 0
	s.pace.Reset()
	s.tokensPerChunk.Store(0)
	for i := range s.withoutIDs {
		s.withoutIDs[i].Store(false)
	}
}

// learn records what the engine has answered; what it has answered before stays. It returns
// why it is not the expected engine, and whether that is new.
func (s *engineFacts) learn(info engineinfo.Info, complete bool) (mismatch error, isNew bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := &s.info
	known.Version, known.Layout = cmp.Or(info.Version, known.Version), cmp.Or(info.Layout, known.Layout)
	known.Connector, known.ConnectorName = cmp.Or(info.Connector, known.Connector), cmp.Or(info.ConnectorName, known.ConnectorName)
	known.DraftTokens = max(info.DraftTokens, known.DraftTokens)
	if info.KVTokens > 0 {
		known.KVTokens, known.BlockTokens = info.KVTokens, info.BlockTokens
	}
	if len(info.Models) > 0 {
		known.Models = info.Models
	}
	mismatch = known.Check(s.model, s.context)
	isNew = mismatch != nil && (s.mismatch == nil || s.mismatch.Error() != mismatch.Error())
	s.complete, s.mismatch = complete, mismatch
	return mismatch, isNew
}

// askAgain records that the engine has left a question without an answer.
func (s *engineFacts) askAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.complete = false
}

// mismatched returns why the engine is not the expected one; nil if it is, or is away.
func (s *engineFacts) mismatched() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mismatch
}

// problemText is mismatched as a text, "" for none.
func (s *engineFacts) problemText() string {
	if err := s.mismatched(); err != nil {
		return err.Error()
	}
	return ""
}

// isAdapter reports whether a name that clients ask for is an adapter of the model.
func (s *engineFacts) isAdapter(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info.IsAdapter(name, s.model)
}

// serves reports whether the engine lists a name that clients ask for, or is known to serve it.
func (s *engineFacts) serves(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return name == "" || name == s.model || s.info.Lists(name)
}

// noteAway records that the engine does not answer: what it is like does not matter now.
func (s *engineFacts) noteAway() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mismatch = nil
}

// capacity returns the size of the KV cache to count with, 0 for unknown.
func (s *engineFacts) capacity() policies.Tokens {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info.Capacity(s.stated, s.assumed)
}

// capacityWarning returns how the engine's KV cache differs from the configured one.
func (s *engineFacts) capacityWarning() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info.CheckCapacity(s.stated)
}

// applyCapacity passes the size of the KV cache on to what counts with it, and warns once if it
// is not the configured one.
func (srv *Server) applyCapacity() {
	s := srv.engineFacts
	kv, warning := s.capacity(), s.capacityWarning()
	srv.admission.setCapacity(kv)
	srv.prefixes.SetCapacity(kv)
	s.mu.Lock()
	log := warning != "" && warning != s.warned
	s.warned = warning
	s.mu.Unlock()
	if log {
		srv.log.Warn("engine's KV cache differs from the fleet file", "problem", warning)
	}
}

// due reports whether the engine's metrics are to be read.
func (s *engineFacts) due(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pace.Due(now.Sub(s.start))
}

// handleMetrics records what an answer of the engine's /metrics says.
func (srv *Server) handleMetrics(sample counterSample, now time.Time) {
	restarted, resized := srv.engineFacts.handleMetrics(sample, srv.tracker.State().Load, now)
	if sample.err == nil && sample.metrics.StatesRequests {
		srv.endUnread(sample.metrics.Load.Running+sample.metrics.Load.Waiting, now.Add(-sample.took))
	}
	if resized {
		srv.applyCapacity()
	}
	if restarted {
		srv.log.Info("engine has started anew")
		srv.forgetCached()
		srv.backoffs.forget(srv.cfg.Replica)
		srv.probeNow()
	}
}

// handleMetrics records a sample that has just arrived; counted is the load of the requests counted here now. It
// returns whether the engine has started anew since the last one, and whether the size of its
// KV cache is another one.
func (s *engineFacts) handleMetrics(sample counterSample, counted policies.Load, now time.Time) (restarted, resized bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pace.Done(now.Sub(s.start), sample.took, sample.err)
	if sample.err != nil {
		return false, false
	}
	m := sample.metrics
	if restarted = s.processFrom > 0 && m.StartedAt > s.processFrom; restarted {
		s.forgetLocked()
		s.pace.Done(now.Sub(s.start), sample.took, nil)
	}
	s.processFrom = m.StartedAt
	was := s.info.KVTokens
	s.info.Update(m)
	s.load, s.loadAt = m.Load, now
	s.load.Queued, s.queued = min(m.Load.Queued, s.queued), m.Load.Queued // twice: a request that arrives is no queue
	// What the engine uses beyond the lengths of running requests belongs to waiting ones,
	// as far as they reach; what it uses less is shared. What has begun or ended since it was asked is neither.
	used, before := m.Load.KVUsed, sample.counted
	least := min(before.Held, counted.Held)
	most := max(before.Held+before.Promised, counted.Held+counted.Promised)
	s.correction = used - min(max(used, least), most)
	return restarted, s.info.KVTokens != was
}

// addLoad adds the engine's report to the load that is counted here. Since the report, the KV
// in use has changed as the lengths counted here have.
func (s *engineFacts) addLoad(l policies.Load, now time.Time) policies.Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loadAt.IsZero() || now.Sub(s.loadAt) > engineLoadAge {
		return l
	}
	l.Engine = s.load
	if l.Engine.Capacity > 0 {
		l.Engine.Capacity = s.info.Capacity(s.stated, s.assumed)
		l.Engine.KVUsed = min(max(l.Held+s.correction, 0), l.Engine.Capacity)
	}
	return l
}

// noteChunk records that an event of the engine has carried that many tokens.
func (s *engineFacts) noteChunk(tokens int) {
	if n := int64(tokens); n > s.tokensPerChunk.Load() {
		s.tokensPerChunk.Store(n) // of two at once, either is right soon
	}
}

// refusesIDs reports whether the engine refuses to return token ids on an endpoint, as far as is known.
func (s *engineFacts) refusesIDs(e openai.Endpoint) bool { return s.withoutIDs[e].Load() }

// noteRefusesIDs records that the engine refuses to return token ids on an endpoint, and reports whether that is new.
func (s *engineFacts) noteRefusesIDs(e openai.Endpoint) (isNew bool) {
	return !s.withoutIDs[e].Swap(true)
}

// reportsCached reports whether the engine has stated the cached tokens of a prompt since it started.
func (s *engineFacts) reportsCached() bool {
	return engineinfo.Presence(s.promptDetails.Load()) == engineinfo.Present
}

// forgetPromptDetails forgets whether the engine states the cached tokens of prompts.
func (s *engineFacts) forgetPromptDetails() { s.promptDetails.Store(uint32(engineinfo.Unknown)) }

// notePromptDetails records whether the usage of an answer contained the cached tokens.
func (s *engineFacts) notePromptDetails(has bool) {
	p := engineinfo.Absent
	if has {
		p = engineinfo.Present
	}
	if old := engineinfo.Presence(s.promptDetails.Load()); old != engineinfo.Present && old != p {
		s.promptDetails.Store(uint32(p)) // engines leave the number out when it is 0
	}
}
