package fleet

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/plantest"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/store"
)

// TestScenarios runs testdata/state/*.txt (package datadriven; -rewrite rewrites the
// expected output). The output of a command is the effects of the State:
//
//	policy NAME [links] [dear] [n] [period=TIME] [shared=NAME] [halves]
//	                          creates the State; must be the first command. With dear
//	                          migrations have a cost. With links
//	                          a token has 1 MB of KV, and the rates are 100 GB/s
//	                          within a host and 1 GB/s between hosts; with n there
//	                          is a second model, n; with shared the control plane has
//	                          this name and shares its store; with halves the site's
//	                          own planner makes two equal stages
//	replicas r0 r1@b r2* r3:n the configured list; * marks draining, + a prefill
//	                          replica, @ the host, : the model
//	report r0 r1 [not-ready] [draining] [held=N] [running=N] [iter=SECONDS]
//	       [kv=TOKENS] [ratio=BYTES] [mix=NAME] [edges=other] [propose=TOKENS] [seen=N] [model=n]
//	       [gpu=N] [host=b] [topology=none|unknown] [routes=N] [bounded]
//	                          the same report from each replica; a missing field keeps
//	                          its value of the previous report. GPUs 0 and 1, and 2
//	                          and 3, are joined by NVLink, and no others of a host;
//	                          host is the one that the replica reports. A proposal
//	                          is for the plan that is in force at that time, and is
//	                          repeated unchanged
//	reply r0                  prints the reply to the replica, as it is sent
//	close r0                  ends its report stream
//	every 1s for 30s          time passes: a tick, and before it a repeated
//	                          report from each replica that has a stream
//	silence r0                r0 stops reporting, but its stream stays open
//	drain r0, undrain r0      an operator's order
//	pin [EPOCH], unpin, rollback [EPOCH|keep]
//	                          an operator's order about the plan
//	refuse EPOCH BEFORE       a proxy refused the plan of an epoch, and keeps the one before
//	history                   prints the decisions, oldest first, and the former plans
//	allow N                   the site's rules: at most N stages; 0: any number
//	store fails|works         the result of proposals
//	stored EPOCH a b | c      another server wrote a plan; cuts at 512, 1024, …
//	edit                      another server or an operator edited the stored object;
//	                          the lines below are the edits (testkit.EditMessage)
//	push N                    an operator's order to make module N of the slot place
//	                          the stable one
//	object                    prints the stored object
//	show                      prints plan, weights, health, and what else was reported
//	flow                      prints what was counted
//	resources                 prints which resources have changed since the last call
//	migration-cost            prints the cost of a migration that the planner was last
//	                          asked with
//	asked                     prints the flow that the planner was last asked to serve
//	restart                   a new State with the stored plans and the counters
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/state", func(t *testing.T, path string) {
		p := &player{t: t, now: start, last: make(map[string]loadreport.Report), talks: make(map[string]bool)}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return p.do(d)
		})
	})
}

type player struct {
	t      *testing.T
	policy []string // the arguments of the command policy
	state  *State
	now    time.Time
	list   []policies.Replica
	last   map[string]loadreport.Report
	talks  map[string]bool
	fails  bool
	most   int // stages that the site's rules allow; 0: any number
	stored Stored
	cost   policies.Transfer // that the planner was last asked with
	flow   policies.Flow     // likewise
	set    resources.Set     // as of the last command resources
	out    strings.Builder
}

func (p *player) do(d *datadriven.TestData) string {
	p.out.Reset()
	f := []string{d.Cmd}
	for _, arg := range d.CmdArgs {
		f = append(f, arg.String())
	}
	switch f[0] {
	case "policy":
		p.policy = f[1:]
		p.begin()
	case "replicas":
		p.list = nil
		for _, id := range f[1:] {
			id, draining := strings.CutSuffix(id, "*")
			id, prefill := strings.CutSuffix(id, "+")
			id, model, other := strings.Cut(id, ":")
			id, host, _ := strings.Cut(id, "@")
			r := scenarioReplica(id)
			if r.Draining, r.Prefill, r.Host = draining, prefill, host; other {
				r.Model = model
			}
			p.list = append(p.list, r)
		}
		if err := CheckReplicas(p.state.rules.Models, p.list); err != nil {
			fmt.Fprintf(&p.out, "refused: %v\n", err)
			break
		}
		p.step(Replicas{p.list})
	case "report":
		p.report(f[1:])
	case "reply":
		p.reply(policies.ReplicaID(f[1]))
	case "close":
		p.talks[f[1]] = false
		p.step(StreamClosed{policies.ReplicaID(f[1])})
	case "silence":
		p.talks[f[1]] = false
	case "every":
		each, err1 := time.ParseDuration(f[1])
		total, err2 := time.ParseDuration(f[3])
		if err1 != nil || err2 != nil {
			d.Fatalf(p.t, "%v %v", err1, err2)
		}
		for end := p.now.Add(total); p.now.Before(end); {
			p.now = p.now.Add(each)
			for _, r := range p.list {
				if p.talks[string(r.ID)] {
					p.step(Reported{p.last[string(r.ID)]})
				}
			}
			p.step(Tick{})
		}
	case "drain", "undrain":
		if id := policies.ReplicaID(f[1]); f[0] == "drain" {
			p.order(fleetstate.Drain{Replica: id})
		} else {
			p.order(fleetstate.Undrain{Replica: id})
		}
	case "pin", "unpin", "rollback":
		var epoch policies.Epoch
		keep := f[len(f)-1] == "keep"
		if len(f) > 1 && !keep {
			n, _ := strconv.Atoi(f[1])
			epoch = policies.Epoch(n)
		}
		p.order(map[string]fleetstate.Order{
			"pin": fleetstate.Pin{Model: "m", Epoch: epoch, By: "ann"}, "unpin": fleetstate.Unpin{Model: "m", By: "ann"}, "rollback": fleetstate.Rollback{Model: "m", To: epoch, Keep: keep, By: "ann"},
		}[f[0]])
	case "refuse":
		epoch, _ := strconv.Atoi(f[1])
		before, _ := strconv.Atoi(f[2])
		p.order(fleetstate.Refuse{Model: "m", Epoch: policies.Epoch(epoch), To: policies.Epoch(before), Why: "edge refused cascade: no", By: "a"})
	case "history":
		p.history()
	case "allow":
		p.most, _ = strconv.Atoi(f[1])
	case "store":
		p.fails = f[1] == "fails"
	case "stored":
		epoch, _ := strconv.Atoi(f[1])
		plan := plantest.Parse(strings.Join(f[2:], " "))
		plan.Epoch = policies.Epoch(epoch)
		for i := range plan.Stages {
			plan.Stages[i].Low = plan.Stages[i].Low * 512 / 100
			if plan.Stages[i].High != policies.Unbounded {
				plan.Stages[i].High = plan.Stages[i].High * 512 / 100
			}
		}
		p.stored = Stored{store.Object{Epoch: plan.Epoch, Drained: p.stored.Object.Drained, Plans: []policies.Plan{plan}, Reasons: []store.Reason{{Model: "m", Epoch: plan.Epoch, At: p.now, Text: "another server"}}}}
		p.step(p.stored)
	case "edit":
		o, err := testkit.EditStruct(p.stored.Object, strings.Split(d.Input, "\n")...)
		if err != nil {
			d.Fatalf(p.t, "%v", err)
		}
		if err := o.Validate(); err != nil {
			d.Fatalf(p.t, "%v", err)
		}
		p.stored = Stored{o}
		p.step(p.stored)
	case "push":
		n, _ := strconv.Atoi(f[1])
		p.order(fleetstate.ChangeSlots{Change: func(list []policyslots.Slot) ([]policyslots.Slot, error) {
			m := policyslots.Module{Generation: lifecycle.Generation(n), SHA256: lifecycle.Digest{1}, Name: "p", Size: 1, Signature: []byte("s")}
			next, err := policyslots.Find(list, lifecycle.Place).Push(policyslots.Trial{Module: m, Goal: lifecycle.ToStable})
			return policyslots.Replace(list, next), err
		}})
	case "object":
		p.object()
	case "flow":
		for _, m := range p.state.Snapshot(p.now).Models {
			fmt.Fprintf(&p.out, "%s: %d seen, %.2f/s\n", m.Name, m.Seen, sum(m.Flow.Arrivals))
		}
		for _, r := range p.state.registry.All() {
			fmt.Fprintf(&p.out, "%s has %d\n", r.ID, r.Seen())
		}
	case "resources":
		p.resources()
	case "restart":
		counters, err := p.state.Counters(p.now).Encode()
		if err != nil {
			p.t.Fatal(err)
		}
		p.begin()
		if err := p.state.RestoreCounters(counters); err != nil {
			p.t.Fatal(err)
		}
		p.step(p.stored)
		p.step(Replicas{p.list})
	case "show":
		p.show()
	case "migration-cost":
		fmt.Fprintf(&p.out, "%.0f µs a token\n", 1e6*p.cost.PerToken)
	case "asked":
		sum := func(column []float64) (all float64) {
			for _, x := range column {
				all += x
			}
			return all
		}
		fmt.Fprintf(&p.out, "%.2f requests/s, prefill %.0f tokens/s, %.3g squared; %.0f tokens/s\n", sum(p.flow.Arrivals), sum(p.flow.Prefill), sum(p.flow.Prefill2), sum(p.flow.Tokens))
	default:
		d.Fatalf(p.t, "unknown command %q", d.Cmd)
	}
	return p.out.String()
}

// order executes an order, or prints why it is refused.
func (p *player) order(o fleetstate.Order) {
	ev := Ordered{Order: o}
	err := p.state.CheckOrder(p.now, ev)
	if unchecked := (*fleetstate.Unchecked)(nil); errors.As(err, &unchecked) {
		if err = p.check(unchecked.Before, unchecked.After); err != nil {
			err = unchecked.Denied(err)
		} else {
			ev.Allowed = unchecked.After
		}
	}
	if err != nil {
		fmt.Fprintf(&p.out, "refused: %v\n", err)
	}
	p.step(ev)
}

// option returns the value of an argument of the command policy.
func (p *player) option(name string) (value string, ok bool) {
	for _, arg := range p.policy[1:] {
		if key, value, _ := strings.Cut(arg, "="); key == name {
			return value, true
		}
	}
	return "", false
}

func (p *player) begin() {
	m := Model{
		Model: resources.Model{Name: "m", Context: 32768}, Edges: policies.BucketEdges(32768, 4),
		QoE: policies.QoE{D0: 0.008, D1: 5e-5, D2: 2e-7, D3: 3e-12, D4: 6e-8}, Cost: policies.Cost{D0: 0.008, D1: 5e-5, D2: 6e-5, D3: 1e-9, D4: 6e-8, Kappa: 4},
	}
	if _, ok := p.option("links"); ok {
		m.TokenBytes, m.Links = 1e6, links.Rates{SameHost: 100 * links.Gigabyte, BetweenHosts: links.Gigabyte}
	}
	if _, ok := p.option("dear"); ok {
		m.Transfer = policies.Transfer{Base: 0.25, PerToken: 1e-4}
	}
	rules := Rules{Policy: p.policy[0], Check: p.check, Wrap: p.wrap, Models: []Model{m}}
	if _, ok := p.option("n"); ok {
		m.Name = "n"
		rules.Models = append(rules.Models, m)
	}
	if period, ok := p.option("period"); ok {
		var err error
		if rules.Period, err = time.ParseDuration(period); err != nil {
			p.t.Fatal(err)
		}
	}
	rules.Name, rules.Shared = p.option("shared")
	s, err := NewState(rules)
	if err != nil {
		p.t.Fatal(err)
	}
	p.state = s
}

// asked is a planner that records the cost of migrations that it is asked with. With
// halves it divides the replicas between two stages, whatever the workload.
type asked struct {
	adoption.Planner
	p      *player
	halves bool
}

func (a asked) Partition(w policies.Workload) (policies.Partition, error) {
	a.p.cost, a.p.flow = w.Transfer, w.Flow
	if a.halves {
		return a.Price(w, []policies.Tokens{512}, []int{w.Replicas / 2, w.Replicas - w.Replicas/2})
	}
	return a.Planner.Partition(w)
}

func (p *player) wrap(model string, native adoption.Planner) adoption.Planner {
	if p.policy[0] == PolicyRoundRobin {
		p.t.Errorf("a planner of %s is wrapped, and the policy needs none", model)
	}
	_, halves := p.option("halves")
	return asked{native, p, halves}
}

// check implements the site's rules.
func (p *player) check(before, after policies.Plan) error {
	if after.Validate() != nil || before.Validate() != nil || after.Epoch <= before.Epoch || after.Model != before.Model {
		p.t.Errorf("the rules were asked about %+v after %+v", after, before)
	}
	if p.most > 0 && len(after.Stages) > p.most {
		return fmt.Errorf("plan denied: %d stages, at most %d", len(after.Stages), p.most)
	}
	return nil
}

func scenarioReplica(id string) policies.Replica {
	n, _ := strconv.Atoi(strings.TrimPrefix(id, "r"))
	return policies.Replica{
		ID: policies.ReplicaID(id), Model: "m", Address: fmt.Sprintf("127.0.0.1:%d", 1000+n),
		Capacity: policies.Capacity{KV: 400_000, Batch: 256},
	}
}

func (p *player) report(words []string) {
	var ids []string
	for len(words) > 0 && words[0][0] == 'r' && !strings.Contains(words[0], "=") {
		ids, words = append(ids, words[0]), words[1:]
	}
	for _, id := range ids {
		r, ok := p.last[id]
		if !ok {
			r = loadreport.Report{Replica: policies.ReplicaID(id), Model: "m", EngineReady: true, Flow: policies.NewFlow(policies.BucketEdges(32768, 4))}
		}
		r.EngineReady, r.Draining, r.Note = true, false, ""
		for _, w := range words {
			key, value, _ := strings.Cut(w, "=")
			x, _ := strconv.ParseFloat(value, 64)
			switch key {
			case "not-ready":
				r.EngineReady = false
			case "draining":
				r.Draining = true
			case "held":
				r.Load.Held = policies.Tokens(x)
			case "kv":
				r.Load.Engine.Capacity = policies.Tokens(x)
			case "running":
				r.Load.Running = int(x)
			case "iter":
				r.Load.Iteration = x
			case "ratio":
				r.BytesPerToken = x
			case "mix":
				seen := r.Flow.Seen + 1000
				r.Flow, r.Snapshot = mix(value)
				r.Flow.Seen = seen
			case "propose":
				plan := p.state.models[0].planner.Plan()
				r.Proposal = partition.BoundaryProposal{Epoch: plan.Epoch, Low: plan.Stages[max(plan.StageOfReplica(r.Replica), 0)].Low, Boundary: policies.Tokens(x)}
			case "gpu":
				n := int(x)
				g := &links.GPU{Index: n, Address: fmt.Sprint("g", n), Peers: []links.Peer{
					{Index: n ^ 1, Address: fmt.Sprint("g", n^1), NVLinks: links.Bundle{Links: 4, Rate: 100 * links.Gigabyte}, Asked: true, Read: true, NVLink: true},
				}}
				r.Topology = &links.Topology{Host: p.state.registry.Get(r.Replica).Host, Known: true, GPU: g}
			case "host":
				where := *r.Topology
				where.Host = value
				r.Topology = &where
			case "topology":
				r.Topology = map[string]*links.Topology{"unknown": {}}[value]
			case "routes":
				r.Routes = make([]loadreport.Route, int(x))
			case "seen":
				r.Flow.Seen = uint64(x)
			case "model":
				r.Model = value
			case "bounded":
				r.Note = "reported out of bounds, and bounded: promised_tokens"
			case "edges":
				r.Flow = policies.NewFlow([]policies.Tokens{0, 7})
			default:
				p.t.Fatalf("unknown word %q", w)
			}
		}
		p.last[id], p.talks[id] = r, true
		p.step(Reported{r})
	}
}

// mix returns the counts of one of eight replicas under a named mix of requests.
func mix(name string) (policies.Flow, []policies.Batch) {
	f := policies.NewFlow(policies.BucketEdges(32768, 4))
	batch := make([]policies.Batch, len(f.Edges))
	// add adds rate requests/s with the given input and output lengths.
	add := func(rate float64, input, output policies.Tokens) {
		b := policies.BucketOf(f.Edges, input)
		f.Arrivals[b] += rate
		f.Prefill[b] += rate * float64(input)
		f.Prefill2[b] += rate * float64(input*input)
		for l := input + 1; l <= input+output; l++ {
			c := policies.BucketOf(f.Edges, l)
			f.Tokens[c] += rate
			f.Reads[c] += rate * float64(l)
			f.Weight[c] += rate / float64(output)
			if l == f.Edges[c] {
				f.Crossings[c] += rate
			}
			batch[c] = batch[c].Plus(policies.Batch{N: rate * 0.02, SumI: rate * 0.02 * float64(input), SumI2: rate * 0.02 * float64(input*input), SumL: rate * 0.02 * float64(l)})
		}
	}
	switch name {
	case "short":
		add(3, 300, 150)
	case "skewed":
		add(4, 200, 150)
		add(0.15, 20000, 400)
	case "prompts":
		add(3, 1500, 20)
		add(0.1, 30000, 20)
	case "idle":
	default:
		panic("unknown mix " + name)
	}
	return f, batch
}

// step applies an event, answers proposals and prints the effects.
func (p *player) step(ev Event) {
	e := p.state.Step(p.now, ev)
	for e.Propose != nil || e.Plan != nil {
		p.printPublished(e)
		if e.Propose == nil {
			e = p.state.Step(p.now, carryOut(e))
			continue
		}
		at := p.now.Sub(start).Seconds()
		if err := e.Propose.Object.Validate(); err != nil {
			p.t.Errorf("the proposed object cannot be stored: %v", err)
		}
		for _, c := range e.Propose.Changes {
			fmt.Fprintf(&p.out, "%gs epoch %d: %s%s: %s\n", at, c.Epoch, prefix(c.Model), why(c.Reason), plantest.Format(policies.Plan{Stages: c.Stages}))
		}
		if old := p.stored.Object.Drained; !slices.Equal(old, e.Propose.Object.Drained) {
			fmt.Fprintf(&p.out, "%gs drained: %v, was %v\n", at, e.Propose.Object.Drained, old)
		}
		if !reflect.DeepEqual(p.stored.Object.Slots, e.Propose.Object.Slots) {
			fmt.Fprintf(&p.out, "%gs slots: %s\n", at, formatSlots(e.Propose.Object.Slots))
		}
		if p.fails {
			fmt.Fprintf(&p.out, "%gs not stored\n", at)
			e = p.state.Step(p.now, NotStored{})
			continue
		}
		p.stored = Stored{e.Propose.Object}
		e = p.state.Step(p.now, p.stored)
	}
	p.printPublished(e)
}

func (p *player) printPublished(e Effects) {
	if e.Publish != nil {
		fmt.Fprintf(&p.out, "%gs publish%s\n", p.now.Sub(start).Seconds(), routing(e.Publish))
	}
}
