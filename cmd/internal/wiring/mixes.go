package wiring

import (
	"fmt"
	"sync"

	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// mixRequests is how many requests of a mix its flow is counted from.
const mixRequests = 5000

// mixes are the shipped request mixes, for what-ifs. The flow of each is computed once for the
// buckets of each model.
type mixes struct {
	mu    sync.Mutex
	flows map[string]policies.Flow // by name, context and number of buckets
}

var _ control.Mixes = (*mixes)(nil)

// Names implements control.Mixes.
func (*mixes) Names() []string { return trace.Names() }

// Flow implements control.Mixes. Prompts that begin alike hit one unbounded cache, as in
// "cascade plan".
func (m *mixes) Flow(name string, context policies.Tokens, edges []policies.Tokens) (policies.Flow, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := fmt.Sprint(name, " ", context, " ", len(edges))
	if f, ok := m.flows[key]; ok {
		return f, nil
	}
	g, ok := trace.Named(name)
	if !ok {
		return policies.Flow{}, fmt.Errorf("mix %q: unknown", name)
	}
	g.Requests, g.Seed = mixRequests, 1
	requests, err := g.Generate()
	if err == nil {
		requests, err = trace.Shape{Rate: 1, MaxLength: context}.Apply(requests)
	}
	if err != nil {
		return policies.Flow{}, fmt.Errorf("mix %q: %w", name, err)
	}
	if m.flows == nil {
		m.flows = make(map[string]policies.Flow)
	}
	m.flows[key] = trace.Flow(requests, edges, true)
	return m.flows[key], nil
}
