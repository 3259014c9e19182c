package fleet

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	kvprefix "github.com/cascadeinfer/cascade/policies/prefix"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/store"
)

// depths returns what a front end observes of 50 prompts that all begin with the same shared
// bytes, are 30,000 bytes long and belong to twelve conversations.
func depths(shared int) *kvprefix.Depths {
	d := new(kvprefix.Depths)
	rng := rand.New(rand.NewPCG(uint64(shared), 1))
	for range 50 {
		var hashes []uint64
		conversation := rng.Uint64N(12)
		for depth := kvprefix.MinDepth; depth <= 30_000; depth *= 2 {
			h := uint64(depth)
			if depth > shared {
				h += (conversation + 1) * 0x9e3779b97f4a7c15
			}
			hashes = append(hashes, h)
		}
		d.Observe(hashes)
	}
	return d
}

// TestConfiguredDepth checks that traffic changes no depth that is configured.
func TestConfiguredDepth(t *testing.T) {
	for name, c := range map[string]struct {
		configured, want int64
	}{"configured": {1024, 1024}, "learnt": {0, 16384}} {
		t.Run(name, func(t *testing.T) {
			rules := testRules(PolicyDefault)
			rules.Models[0].PrefixDepth = c.configured
			s, err := NewState(rules)
			if err != nil {
				t.Fatal(err)
			}
			settleState(s, start, Replicas{[]policies.Replica{testReplica("r0")}})
			for i := range 60 {
				now := start.Add(time.Duration(i) * time.Second)
				r := loadreport.Report{Replica: "r0", Model: "m", EngineReady: true}
				if i == 0 {
					r.PrefixDepths = depths(9000)
					r.PrefixDepths.Merge(depths(9001))
				}
				settleState(s, now, Reported{r})
				settleState(s, now, Tick{})
			}
			if got := s.Snapshot(start.Add(time.Minute)).Models[0].PrefixDepth; got != c.want {
				t.Errorf("prefix depth %d, want %d", got, c.want)
			}
		})
	}
}

// TestDepthIsRecorded checks that the leader of several control planes stores a depth that it
// has learnt, and only then serves it.
func TestDepthIsRecorded(t *testing.T) {
	rules := testRules(PolicyDefault)
	rules.Shared, rules.Name = true, "a"
	s, err := NewState(rules)
	if err != nil {
		t.Fatal(err)
	}
	settleState(s, start, Replicas{[]policies.Replica{testReplica("r0")}})
	r := loadreport.Report{Replica: "r0", Model: "m", EngineReady: true, PrefixDepths: depths(9000)}
	r.PrefixDepths.Merge(depths(9001))
	settleState(s, start, Reported{r})
	var o store.Object
	if s.recordReplicas(&o); len(o.PrefixDepths) != 0 {
		t.Errorf("no depth is stored: %v", o.PrefixDepths)
	}
	m := s.models[0]
	s.updateDepth(start, m)
	if s.recordReplicas(&o); m.depth != 0 || len(o.PrefixDepths) != 1 || o.PrefixDepths[0] != (store.PrefixDepth{Model: "m", Bytes: 16384}) {
		t.Errorf("depth %d is served and %v stored", m.depth, o.PrefixDepths)
	}
}
