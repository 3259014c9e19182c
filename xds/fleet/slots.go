package fleet

import (
	"cmp"
	"context"
	"reflect"
	"slices"

	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// Policies is an order to change what the policy slots of all hosts should run.
// Change is pure: it makes the slots that are to be stored out of those that are,
// or says why not. It may be called more than once.
type Policies struct {
	Change func([]policyslots.Slot) ([]policyslots.Slot, error)
}

func (Policies) event() {}

// Policies gives a Policies order, and returns when it is stored. The error is
// that of Change, wraps ErrNotSaved, or is that of a fleet that stops. Plans,
// weights and what proxies are shown do not change with it.
func (f *Fleet) Policies(ctx context.Context, p Policies) error { return f.order(ctx, p) }

// Hosts returns what every configured replica's migrator said of its policy
// slots last, sorted by replica.
func (f *Fleet) Hosts() []policyslots.Report {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]policyslots.Report, 0, len(f.hosts))
	for _, r := range f.replicas {
		if h, ok := f.hosts[r.ID]; ok {
			out = append(out, h)
		}
	}
	slices.SortFunc(out, func(a, b policyslots.Report) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

// tellSlots hands on what the stored object says of slots, if that is news.
// Called by the loop alone.
func (f *Fleet) tellSlots() {
	if f.cfg.Slots == nil || f.told && reflect.DeepEqual(f.slots, f.state.object.Slots) {
		return
	}
	f.slots, f.told = f.state.object.Slots, true
	f.cfg.Slots(f.slots)
}

// reslot notes an order about slots. It comes into force when it is stored;
// Refused takes it back.
func (s *State) reslot(p Policies) {
	next, err := p.Change(s.object.Slots)
	if err != nil || reflect.DeepEqual(next, s.object.Slots) {
		return
	}
	s.slots, s.unsaved, s.ordered = &next, true, true
}
