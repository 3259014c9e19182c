package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/console"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// fakePage is what a page shows.
type fakePage struct {
	console.View
	Status control.Status
}

// model returns the status of the first model, and stage one of its stages.
func (v *fakePage) model() *control.Model      { return &v.Status.Models[0] }
func (v *fakePage) stage(i int) *control.Stage { return &v.model().Stages[i] }
func (v *fakePage) replica(i int) *control.Replica { // by its number
	if n := len(v.stage(0).Replicas); i >= n {
		return &v.stage(1).Replicas[i-n]
	}
	return &v.stage(0).Replicas[i]
}

// scripted is a source whose view the test changes.
type scripted struct {
	mu   sync.Mutex
	view fakePage
}

func (s *scripted) View(now time.Time) console.View {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, status := s.view.View, s.view.Status
	status.Time, status.Verdict, v.Advice = now, control.VerdictOf(status.Faults, status.Epoch), make(map[string]console.Advice)
	for _, f := range status.Faults {
		v.Advice[f.Kind], _ = console.AdviceFor(f.Kind)
	}
	text, err := json.Marshal(status) // the test may edit it
	if err != nil {
		panic("internal error: " + err.Error())
	}
	v.Status = json.RawMessage(text)
	return v
}

func (s *scripted) WhatIf(_ context.Context, q console.Question) (console.Answer, error) {
	if q.Replicas == 1 {
		return console.Answer{}, &console.FieldError{Field: "replicas", Text: "1 cannot carry this traffic"}
	}
	high := policies.Tokens(2048)
	one := 4.0
	return console.Answer{Model: q.Model, Replicas: q.Replicas, Rate: 12, Traffic: "traffic of the last planning period", Policy: "default", Cost: 3, OneStage: &one, Exact: true,
		Stages: []console.Stage{{Name: "s0", High: &high, Replicas: q.Replicas - 1, Known: true, Requests: 0.9, Tokens: 0.5}, {Name: "s1", Low: high, Replicas: 1, Known: true, Requests: 0.1, Tokens: 0.5}}}, nil
}

// edit changes the view.
func (s *scripted) edit(change func(*fakePage)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.view)
}

// site is a console on a real port, which can be stopped and started again.
type site struct {
	t       testing.TB
	source  console.Source
	address string
	every   time.Duration // between two events
	token   string        // of orders, which get what a page orders; "" for none
	orders  http.Handler
	stop    func()
}

func newSite(t testing.TB, source console.Source) *site {
	return newSiteEvery(t, source, 100*time.Millisecond)
}

func newSiteEvery(t testing.TB, source console.Source, every time.Duration) *site {
	s := &site{t: t, source: source, address: "127.0.0.1:0", every: every}
	s.start()
	t.Cleanup(func() { s.stop() })
	return s
}

// newOrderSite returns a site that offers orders.
func newOrderSite(t testing.TB, source console.Source, token string, orders http.HandlerFunc) *site {
	s := &site{t: t, source: source, address: "127.0.0.1:0", every: 100 * time.Millisecond, token: token, orders: orders}
	s.start()
	t.Cleanup(func() { s.stop() })
	return s
}

func (s *site) url() string { return "http://" + s.address + "/" }

// start serves the console at the address; stop ends it and its connections.
func (s *site) start() {
	s.t.Helper()
	c, err := console.New(console.Config{Source: s.source, Interval: s.every, Token: s.token, Orders: s.orders})
	testkit.NoError(s.t, err)
	l, err := net.Listen("tcp", s.address)
	testkit.NoError(s.t, err)
	s.address = l.Addr().String()
	server := &http.Server{Handler: c}
	stop := testkit.Run(s.t, c.Run)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	s.stop = sync.OnceFunc(func() {
		stop()
		server.Close()
		<-served
	})
}

// fleetView returns the view of a fleet of two stages that is well.
func fleetView(replicas int) fakePage {
	cut, rise := policies.Tokens(4096), 0.183
	m := control.Model{
		Name: "llama-3.1-8b", Context: 131072, Epoch: 12, Reason: "predicted gain", Planner: "kept: predicted gain 2 %", Rate: 14.2, Seen: 52_000,
		Stages: []control.Stage{{Name: "s0", High: &cut, Replicas: []control.Replica{}, Reason: &control.StageReason{Requests: 0.91, Tokens: 0.62, MergedWith: "s1", CostRise: &rise}},
			{Name: "s1", Low: cut, Replicas: []control.Replica{}, Reason: &control.StageReason{Requests: 0.09, Tokens: 0.38, MergedWith: "s0", CostRise: &rise}}},
	}
	more := console.Model{
		Service: console.Service{Answers: 851, Refused: 12, Failed: 2, FirstTokenP50: 0.184, FirstTokenP95: 1.31, PerTokenP50: 0.0212, PerTokenP95: 0.0388},
		Former:  []policies.Epoch{9, 11},
		Moves:   []console.Move{{From: 0, To: 1, Count: 17}, {From: 1, To: 1, Count: 3}},
		History: []console.Decision{{Time: time.Now().Add(-time.Minute), Epoch: 12, Decision: "adopted", Reason: "predicted gain", Gain: 0.18, Predicted: 0.0213, Observed: 0.0221}},
	}
	for _, low := range policies.BucketEdges(131072, 4) {
		more.Buckets = append(more.Buckets, console.Bucket{Low: low, Arrivals: 1 / (1 + float64(low)/900), Tokens: 100 / (1 + float64(low)/9000)})
	}
	for i := range replicas {
		stage := &m.Stages[0]
		if i >= replicas/2 {
			stage = &m.Stages[1]
		}
		stage.Replicas = append(stage.Replicas, control.Replica{
			ID: policies.ReplicaID(fmt.Sprintf("r%d", i)), Host: fmt.Sprintf("node-%d", i/8), Health: "healthy", Running: 20 + i%7, Waiting: i % 2, ReportAge: new(float64),
			Held: policies.Tokens(40_000 * (1 + i%9)), Capacity: 400_000, Iteration: 0.0211 + 0.0004*float64(i%5), Weight: 100, Residents: 20, Streams: 21,
		})
	}
	return fakePage{Status: control.Status{
		Policy: "default", Epoch: 12, PublishedEpoch: 12, Phase: "idle", Models: []control.Model{m}, Groups: []control.Group{}, Observers: replicas,
		Nodes: []control.Node{{ID: "envoy@edge-1", State: "current", Connected: true, Current: true, Epoch: 12}, {ID: "envoy@edge-2", State: "current", Connected: true, Current: true, Epoch: 12, NACKs: 1}},
	}, View: console.View{
		Name: "control-1", Models: []console.Model{more}, Mixes: []string{"chat", "mixed"},
		Slots: []console.Slot{{Slot: "place", Stable: "place-cheapest 1.0.0, generation 3", Candidate: "place-cheapest 1.1.0, generation 4, to canary 10 ‰", Nodes: 8,
			Phases: []console.SlotPhase{{Module: "generation 4", Phase: "shadow", Hosts: 6}, {Module: "generation 4", Phase: "canary", Hosts: 2}}, Hosts: []console.SlotHost{{Host: "r0", Module: "generation 4", Phase: "shadow"}}}},
		Migrations: console.Migrations{Running: 1, Done: 20, Aborted: 1, StallP50: 0.0041, StallP99: 0.0192, Latest: []loadreport.Migration{
			{ID: "r0/2", Request: "cmpl-81", Cause: "growth", From: "r0", To: "r3", Method: "live", Transport: "shm", State: "done", Tokens: 4101, Bytes: 500 << 20, Stall: 0.0041, Seconds: 0.3, Reported: time.Now().Add(-2 * time.Second)},
			{ID: "r1/7", Request: "cmpl-64", Cause: "outlier", From: "r1", To: "r2", Method: "reprompt", State: "aborted", Reason: "the target is full", Tokens: 900, Reported: time.Now().Add(-9 * time.Second)}}},
	}}
}

// breakFleet makes things of a fleetView not work: a replica, a proxy, and a drain that waits.
func breakFleet(v *fakePage) {
	v.Status.Faults = []control.Fault{
		{Kind: "store", Object: "write", Text: "the plan store cannot be written, and orders fail: write /var/lib/cascade/plan.json: no space left on device", NotReady: true, Seconds: 312},
		{Kind: "replica", Object: "r3", Text: "the engine does not answer its health check: connection refused", Seconds: 75},
		{Kind: "rollout", Object: "envoy@edge-1", Text: "the proxy refuses what it is sent, and keeps its last good version: unknown field retry_priority"},
	}
	r := v.replica(3)
	r.Health, r.HealthReason, r.HealthSeconds = "unhealthy", "the engine does not answer its health check: connection refused", 75
	r = v.replica(4)
	r.Health, r.Drain, r.Pinned, r.PinnedSeconds = "draining", []string{"operator"}, 2, 41
	n := &v.Status.Nodes[0]
	n.Refusing, n.Current, n.Reason, n.Epoch, n.NACKs = true, false, "unknown field retry_priority", 11, 3
}
