package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/baseline"
)

// progressEvery is the number of events between two calls of Config.Progress, and between two checks of
// the context.
const progressEvery = 1 << 14

// TooLong is the kind of failure of a request that no replica's KV cache can hold.
const TooLong replay.Kind = "too long"

// Sim is one simulation.
type Sim struct {
	cfg      Config
	prices   *cost.Attention
	replicas []*replica
	proxies  []proxy
	loads    []policies.Tokens // scratch
	lengths  []policies.Tokens // scratch of inspect
	rng      *rand.Rand

	queue       queue
	now         time.Duration
	next        request // the request that is due next
	sourceEnded bool
	read        uint64 // requests, with the next one
	ended       uint64
	events      uint64

	stats    replay.Collector
	reuse    replay.Reuse
	failures map[replay.Kind]*replay.Failure
	// Of sampleBalance.
	balance     replay.BalanceMeter
	nextBalance time.Duration
	work        []float64 // scratch
	stages      []int     // scratch

	mover   mover
	cascade *cascade // nil: the proxies' routers decide
	central *central // nil: no router moves requests
	plans   []PlanChange
	refined uint64 // changes of boundaries alone
}

// New returns a simulation that has not begun. The error names the invalid field of the Config, or what
// is wrong with a profile.
func New(c Config) (*Sim, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.Source == nil {
		return nil, errors.New("simulate: Source is required: the requests")
	}
	prices, err := cost.NewAttention(c.Profile, c.Attention, c.Stress, c.Skew)
	if err != nil {
		return nil, fmt.Errorf("simulate: %w", err)
	}
	s := &Sim{cfg: c, prices: prices, rng: rand.New(rand.NewPCG(c.Seed, 0x51b)), failures: map[replay.Kind]*replay.Failure{}, loads: make([]policies.Tokens, c.Replicas)}
	s.mover.sim = s
	for i := range c.Replicas {
		r, err := newReplica(i, &c, prices.Seconds)
		if err != nil {
			return nil, fmt.Errorf("simulate: %w", err)
		}
		s.replicas = append(s.replicas, r)
	}
	if isCascade(c.Policy) {
		if s.cascade, err = newCascade(s); err != nil {
			return nil, err
		}
		return s, nil
	}
	for range c.Proxies {
		router, _ := baseline.New(c.Policy) // validate has checked the name
		s.proxies = append(s.proxies, newProxy(router, &c))
	}
	s.central = newCentral(s, s.proxies[0].router)
	return s, nil
}

// Run simulates until the last request has ended. It returns the error of the source or the context's
// cause, with the Result so far. It may be called once.
func (s *Sim) Run(ctx context.Context) (Result, error) {
	if err := s.scheduleArrival(); err != nil {
		return s.result(), err
	}
	for i, f := range s.cfg.Faults {
		s.queue.push(event{at: f.At, kind: fault, index: int32(i * faultPhases)})
	}
	if s.cfg.Inspect != nil {
		s.queue.push(event{at: s.cfg.InspectInterval, kind: inspected})
	}
	if s.cascade != nil {
		s.cascade.start()
	} else {
		s.queue.push(event{at: s.cfg.ReportInterval, kind: report})
	}
	if s.central != nil {
		s.central.start()
	}
	for !s.over() {
		e, ok := s.queue.pop()
		if !ok {
			return s.result(), errors.New("internal error: requests are in flight and nothing is scheduled")
		}
		if s.now = e.at; s.now >= s.nextBalance {
			s.sampleBalance()
		}
		if err := s.handle(e); err != nil {
			return s.result(), err
		}
		if s.events++; s.events%progressEvery == 0 {
			s.showProgress()
			if ctx.Err() != nil {
				return s.result(), context.Cause(ctx)
			}
		}
	}
	s.showProgress()
	return s.result(), nil
}

// over reports whether all requests have ended.
func (s *Sim) over() bool { return s.sourceEnded && s.ended == s.read }

func (s *Sim) showProgress() {
	if s.cfg.Progress != nil {
		s.cfg.Progress(Progress{Arrived: s.read, Ended: s.ended, Virtual: s.now})
	}
}

func (s *Sim) handle(e event) error {
	switch e.kind {
	case arrival:
		q := s.next
		s.route(&q)
		return s.scheduleArrival()
	case iteration:
		if r := s.replicas[e.index]; r.life == e.life { // an engine that failed since ends no iteration
			s.endIteration(r)
			s.beginIteration(r)
		}
	case report:
		s.measureLoads()
		s.queue.push(event{at: s.now + s.cfg.ReportDelay, kind: reported})
		s.queue.push(event{at: s.now + s.cfg.ReportInterval, kind: report})
	case reported:
		for i := range s.proxies {
			s.proxies[i].applyLoads()
		}
	case copied:
		s.mover.endRound(e.arg.(*transfer))
	case rebalance:
		s.central.rebalance()
	case fault:
		return s.handleFault(int(e.index)/faultPhases, faultPhase(int(e.index)%faultPhases))
	case inspected:
		s.inspect()
	default:
		return s.cascade.handle(e)
	}
	return nil
}

// measureLoads measures the replicas' loads, which reach the proxies later.
func (s *Sim) measureLoads() {
	for i, r := range s.replicas {
		load := r.load()
		s.loads[i] = load.Held + load.Promised
		if s.central != nil {
			s.loads[i] = s.central.load(i, load)
		}
	}
	for i := range s.proxies {
		s.proxies[i].recordLoads(s.loads)
	}
}

// inspect shows the lengths of the requests that run on each replica.
func (s *Sim) inspect() {
	for _, r := range s.replicas {
		s.lengths = s.lengths[:0]
		for _, q := range r.resident {
			if q.tokens > 0 {
				s.lengths = append(s.lengths, q.length())
			}
		}
		if len(s.lengths) > 0 {
			s.cfg.Inspect(r.index, s.lengths)
		}
	}
	s.queue.push(event{at: s.now + s.cfg.InspectInterval, kind: inspected})
}

// scheduleArrival reads the next request from the source and schedules its arrival.
func (s *Sim) scheduleArrival() error {
	next, err := s.cfg.Source.Next()
	if errors.Is(err, io.EOF) {
		s.sourceEnded = true
		return nil
	}
	if err != nil {
		return err
	}
	if next.At < s.now {
		return fmt.Errorf("simulate: request %d is due at %v, after one at %v; sort the trace by arrival", s.read, next.At, s.now)
	}
	s.next = request{Request: next, index: s.read}
	s.read++
	s.queue.push(event{at: next.At, kind: arrival})
	return nil
}

// route sends a request that is due to a replica. A proxy that gets no answer tries others, as Envoy and
// the routers do by default.
func (s *Sim) route(q *request) {
	s.stats.AddArrival(s.now)
	s.reuse.AddRequest(q.Request)
	if s.cascade != nil {
		switch to := s.cascade.route(q); {
		case to < 0:
			s.endRequest(q, replay.Connect, noReplica)
		case !s.replicas[to].fits(q.Request):
			s.submit(q, to)
		default:
			if to = s.cascade.admit(q, to); to < 0 {
				s.cascade.refuse(q)
				return
			}
			s.cascade.noteArrival(q, to)
			if !s.cascade.pullPrefix(q, to) {
				s.submit(q, to)
			}
		}
		return
	}
	if s.cfg.Proxies > 1 {
		q.proxy = s.rng.IntN(s.cfg.Proxies)
	}
	p := &s.proxies[q.proxy]
	among := p.replicas
	if s.central != nil {
		among = s.central.candidates(among)
	}
	if p.reads {
		p.readCaches(s.replicas, q)
	}
	to := -1
	var silent []int // replicas that did not answer
	for range proxyAttempts {
		to = p.router.Route(baseline.Request{Input: q.Input, Prefix: q.Prefix}, among, s.rng)
		if to < 0 || !s.replicas[to].failed {
			break
		}
		silent, among[to].Down, to = append(silent, to), true, -1
	}
	for _, i := range silent {
		among[i].Down = false
	}
	if to < 0 {
		q.replica = -1
		s.endRequest(q, replay.Connect, noReplica)
		return
	}
	q.replica = to
	p.send(q)
	s.submit(q, to)
}

// noReplica is the message of requests that find none.
const noReplica = "no replica is up"

// submit sends a request to the replica that was chosen.
func (s *Sim) submit(q *request, to int) {
	switch r := s.replicas[to]; {
	case !r.fits(q.Request):
		s.endRequest(q, TooLong, fmt.Sprintf("%d + %d tokens, but the KV cache holds %d", q.Input, q.Output, s.cfg.KVTokens))
	default:
		r.submit(q)
		s.resume(r)
	}
}

// resume starts a replica's next iteration unless one is under way.
func (s *Sim) resume(r *replica) {
	if !r.running {
		s.beginIteration(r)
	}
}

// beginIteration starts a replica's next iteration if it has something to do.
func (s *Sim) beginIteration(r *replica) {
	if takes := r.begin(); r.running {
		r.endsAt = s.now + takes
		s.queue.push(event{at: s.now + takes, kind: iteration, index: int32(r.index), life: r.life})
	}
}

// endIteration hands out the tokens of an iteration.
func (s *Sim) endIteration(r *replica) {
	s.stats.AddTokens(s.now, len(r.step.Events))
	r.endedAt = s.now
	for i := range r.step.Events {
		e := &r.step.Events[i]
		q := e.Sequence.Receiver.(*request)
		if q.aborted {
			continue
		}
		q.last = s.now
		if q.tokens++; q.tokens == 1 {
			q.first, q.cached = s.now, e.Cached
		}
		if s.cascade != nil {
			s.cascade.countToken(r, q, e)
		}
		if e.Finish != 0 {
			if q.transfer != nil {
				s.mover.fail(q.transfer) // a request that ends while it moves has its answer
			}
			r.remove(q)
			s.endRequest(q, "", "")
		} else if s.central != nil && q.tokens == 1 {
			s.central.handOff(q)
		}
	}
	if len(r.freezing) > 0 {
		s.mover.freezePending(r)
	}
	if s.central != nil {
		s.central.admit(r)
	}
}

// endRequest records the end of a request; kind is empty if it was answered in full.
func (s *Sim) endRequest(q *request, kind replay.Kind, message string) {
	s.ended++
	if s.cascade == nil && q.replica >= 0 {
		s.proxies[q.proxy].end(q)
	}
	r := replay.Record{
		Index: int(q.index), Due: q.At.Seconds(), Input: q.Input, Output: q.Output, E2E: (s.now - q.At).Seconds(), Error: kind, Message: message,
	}
	if q.tokens > 0 {
		r.TTFT, r.Last, r.Tokens, r.Prompt, r.Cached = (q.first - q.At).Seconds(), (q.last - q.At).Seconds(), q.tokens, int64(q.Input), int64(q.cached)
	}
	s.stats.AddEnd(&r)
	s.reuse.AddAnswer(&r)
	if s.cfg.Record != nil {
		s.cfg.Record(&r)
	}
	if kind == "" {
		return
	}
	f := s.failures[kind]
	if f == nil {
		f = &replay.Failure{Kind: kind, First: message}
		s.failures[kind] = f
	}
	f.Count++
}
