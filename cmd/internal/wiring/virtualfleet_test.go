package wiring

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// virtualFleet is a control plane's state machine and engines with the cost model's times, in
// virtual time. Requests start at the stage of their prompt's length, and migrate at no cost
// when they outgrow their stage.
type virtualFleet struct {
	t       *testing.T
	state   *fleet.State
	cost    policies.Cost
	qoe     policies.QoE
	edges   []policies.Tokens
	model   string
	refiner policies.Refiner // nil: boundaries are not refined
	period  time.Duration
	now     time.Time
	plan    policies.Plan
	engines []*virtualEngine
	rng     *rand.Rand
	// changes are the plans that came into force, but for refined boundaries.
	changes []planChange
	refined int
}

type planChange struct {
	at             time.Duration
	reason, stages string
}

type virtualEngine struct {
	id       policies.ReplicaID
	capacity policies.Capacity
	starting bool // not ready yet
	requests []*virtualRequest
	counter  *partition.FlowCounter
	tokens   float64 // since the last report: Σ requests·seconds/iteration, and
	busy     float64 // Σ requests·seconds
	proposal partition.BoundaryProposal
}

type virtualRequest struct {
	input, output policies.Tokens
	generated     float64
	counted       policies.Tokens
	prefill       float64 // seconds left
}

func (r *virtualRequest) length() policies.Tokens { return r.input + policies.Tokens(r.generated) }

// running returns the requests that fit into the engine's batch; the others wait.
func (e *virtualEngine) running() []*virtualRequest {
	return e.requests[:min(len(e.requests), e.capacity.Batch)]
}

// virtualStep is the time in which batches are taken to be constant.
const virtualStep = 250 * time.Millisecond

// newVirtualFleet starts a fleet with the first model and the replicas of f.
func newVirtualFleet(t *testing.T, f *Fleet, seed uint64) *virtualFleet {
	state, err := fleet.NewState(f.Rules())
	testkit.NoError(t, err)
	m := f.Rules().Models[0]
	v := &virtualFleet{t: t, state: state, cost: m.Cost, qoe: m.QoE, edges: m.Edges, model: m.Name, period: f.Planner.Period, now: time.Unix(0, 0), rng: rand.New(rand.NewPCG(seed, 7))}
	if f.Refines() {
		v.refiner = partition.PaperRefiner{}
	}
	for _, r := range f.Registry() {
		v.engines = append(v.engines, &virtualEngine{id: r.ID, capacity: r.Capacity, counter: partition.NewFlowCounter(m.Edges, f.Planner.Window.Seconds())})
	}
	v.step(fleet.Replicas{List: f.Registry()})
	v.report()
	return v
}

// step applies an event, plans, and stores what the state proposes.
func (v *virtualFleet) step(ev fleet.Event) {
	e := v.state.Step(v.now, ev)
	for e.Propose != nil || e.Plan != nil {
		if e.Propose == nil {
			e.Plan.Run()
			e = v.state.Step(v.now, fleet.Planned{})
			continue
		}
		for _, c := range e.Propose.Changes {
			if c.Decision == "refined" {
				v.refined++
			} else {
				v.changes = append(v.changes, planChange{v.now.Sub(time.Unix(0, 0)), c.Reason, show(c.Stages)})
			}
		}
		v.plan = e.Propose.Object.Plans[0]
		e = v.state.Step(v.now, fleet.Stored{Object: e.Propose.Object})
	}
}

// report reports from every engine, ticks, and applies the replies.
func (v *virtualFleet) report() {
	for _, e := range v.engines {
		r := loadreport.Report{Replica: e.id, Model: v.model, EngineReady: !e.starting, Flow: e.counter.Rates(v.seconds()), Snapshot: make([]policies.Batch, len(v.edges)), Proposal: e.proposal}
		for _, q := range e.requests {
			if q.prefill > 0 {
				r.Load.Waiting, r.Load.Promised = r.Load.Waiting+1, r.Load.Promised+q.length()
			} else {
				r.Load.Running, r.Load.Held = r.Load.Running+1, r.Load.Held+q.length()
			}
			b := policies.BucketOf(v.edges, q.length())
			r.Snapshot[b] = r.Snapshot[b].Add(q.input, q.length())
		}
		if e.tokens > 0 {
			r.Load.Iteration = e.busy / e.tokens
		}
		e.tokens, e.busy = 0, 0
		v.step(fleet.Reported{Report: r})
	}
	v.step(fleet.Tick{})
	for _, e := range v.engines {
		e.proposal = partition.BoundaryProposal{}
		reply, _ := v.state.Reply(e.id)
		b := reply.Boundary
		if b == nil || v.refiner == nil {
			continue
		}
		view := policies.BoundaryView{Boundary: b.At, Low: b.Low, High: b.High, Peers: b.Peers, Successors: b.Successors, QoE: v.qoe}
		stage := v.plan.StageOfReplica(e.id)
		for _, o := range v.engines {
			for _, q := range o.requests {
				s := policies.Sequence{Input: q.input, Length: q.length()}
				switch {
				case o == e:
					view.Local = append(view.Local, s)
				case v.plan.StageOfReplica(o.id) == stage+1:
					view.Next = append(view.Next, s)
				}
			}
		}
		e.proposal = partition.BoundaryProposal{Epoch: b.Epoch, Low: b.Low, Boundary: v.refiner.Refine(view)}
	}
}

func (v *virtualFleet) seconds() float64 { return v.now.Sub(time.Unix(0, 0)).Seconds() }

// place adds a request to the engine that holds least, of the ready ones in the stage of its length or, if it has
// none, of all.
func (v *virtualFleet) place(q *virtualRequest) *virtualEngine {
	members := v.plan.Stages[v.plan.StageOf(q.length())].Replicas
	var best, other *virtualEngine
	least, leastOther := policies.Unbounded, policies.Unbounded
	for _, e := range v.engines {
		held := policies.Tokens(0)
		for _, o := range e.requests {
			held += o.length()
		}
		switch {
		case e.starting:
		case slices.Contains(members, e.id) && held < least:
			best, least = e, held
		case held < leastOther:
			other, leastOther = e, held
		}
	}
	best = cmp.Or(best, other)
	best.requests = append(best.requests, q)
	return best
}

// run serves requests with the given lengths, drawn at random, that arrive as a Poisson process.
func (v *virtualFleet) run(lengths []trace.Request, rate float64, duration time.Duration) {
	next := v.now
	gap := func() time.Duration { return time.Duration(v.rng.ExpFloat64() / rate * float64(time.Second)) }
	next = next.Add(gap())
	for end, n := v.now.Add(duration), 0; v.now.Before(end); n++ {
		v.now = v.now.Add(virtualStep)
		for ; next.Before(v.now); next = next.Add(gap()) {
			r := lengths[v.rng.IntN(len(lengths))]
			e := v.place(&virtualRequest{input: r.Input, output: r.Output, prefill: v.cost.D2*float64(r.Input) + v.cost.D3*float64(r.Input)*float64(r.Input)})
			e.counter.CountArrival(v.seconds(), r.Input, 0)
		}
		for _, e := range v.engines {
			v.work(e)
		}
		if n%4 == 3 {
			v.report()
		}
	}
}

// idle lets time pass in which no request arrives.
func (v *virtualFleet) idle(duration time.Duration) {
	for end := v.now.Add(duration); v.now.Before(end); v.report() {
		v.now = v.now.Add(4 * virtualStep)
	}
}

// work is one step of an engine: it prefills first, and decodes in the time that is left.
func (v *virtualFleet) work(e *virtualEngine) {
	left := virtualStep.Seconds()
	var batch policies.Batch
	for _, q := range e.running() {
		spent := min(left, q.prefill)
		if q.prefill, left = q.prefill-spent, left-spent; q.prefill == 0 {
			batch = batch.Add(q.input, q.length())
		}
	}
	iteration := v.cost.D0 + v.cost.D1*batch.N + v.cost.D4*batch.SumL
	tokens := left / iteration
	e.busy, e.tokens = e.busy+batch.N*virtualStep.Seconds(), e.tokens+batch.N*tokens
	stage := v.plan.StageOfReplica(e.id)
	var grown []*virtualRequest
	waiting := slices.Clone(e.requests[len(e.running()):])
	e.requests = slices.DeleteFunc(e.running(), func(q *virtualRequest) bool {
		if q.prefill > 0 {
			return false
		}
		q.generated = min(q.generated+tokens, float64(q.output))
		if n := policies.Tokens(q.generated) - q.counted; n > 0 {
			e.counter.CountTokens(v.seconds(), q.length(), int(n))
			q.counted += n
		}
		if q.generated >= float64(q.output) {
			e.counter.CountFinish(v.seconds(), q.input, q.output)
			return true
		}
		if v.plan.StageOf(q.length()) > stage {
			grown = append(grown, q)
			return true
		}
		return false
	})
	e.requests = append(e.requests, waiting...)
	for _, q := range grown {
		v.place(q)
	}
}

// rateFor returns the requests per second that keep the fleet busy for this share of its time,
// besides the fixed cost of iterations.
func rateFor(v *virtualFleet, lengths []trace.Request, load float64) float64 {
	work := 0.0
	for _, r := range lengths {
		i, o := float64(r.Input), float64(r.Output)
		work += v.cost.D2*i + v.cost.D3*i*i + o*(v.cost.D1+v.cost.D4*(i+o/2))
	}
	return load * float64(len(v.engines)) * float64(len(lengths)) / work
}

// show formats the stages of a plan.
func show(stages []policies.Stage) string {
	var out strings.Builder
	for i, s := range stages {
		if i > 0 {
			fmt.Fprintf(&out, " |%v| ", s.Low)
		}
		fmt.Fprint(&out, len(s.Replicas))
	}
	return out.String()
}
