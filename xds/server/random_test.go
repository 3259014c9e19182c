package server_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// modelClient is a client of one type that records what it should have.
type modelClient struct {
	*client
	group    string
	typ      string
	wildcard bool
	names    map[string]bool
	has      map[string]string // versions by name
}

// acceptAll acknowledges every response that came.
func (m *modelClient) acceptAll() {
	all, _ := m.receive()
	for _, message := range all {
		r := message.(*discoveryv3.DeltaDiscoveryResponse)
		for _, res := range r.Resources {
			if m.names[res.Name] || m.wildcard { // otherwise it was on its way at the unsubscription
				m.has[res.Name] = res.Version
			}
		}
		for _, name := range r.RemovedResources {
			delete(m.has, name)
		}
		m.ack(r)
	}
}

// expected returns what the client should have of a set.
func (m *modelClient) expected(s resources.Set) map[string]string {
	all := make(map[string]string)
	for _, r := range s.All(m.typ) {
		if m.names[r.Name] || m.wildcard && !r.Unlisted {
			all[r.Name] = r.Version
		}
	}
	return all
}

// changes applies changes to a cache in order: at once, or while the server
// handles the next request.
type changes struct {
	during chan func()

	mu      sync.Mutex
	pending []func()
}

// add applies a change while the server handles the next request, or at once
// if now is set and no earlier change is pending.
func (c *changes) add(now bool, change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now && len(c.pending) == 0 {
		change()
		return
	}
	if c.pending = append(c.pending, change); len(c.pending) == 1 {
		c.during <- c.applyPending
	}
}

// applyPending applies what is pending.
func (c *changes) applyPending() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, change := range c.pending {
		change()
	}
	c.pending = nil
}

// TestRandomSubscriptions applies random sets to random groups while clients
// subscribe, unsubscribe and reply at random. Whenever all have replied, each
// has exactly what it subscribes to of its group's set.
func TestRandomSubscriptions(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			randomSubscriptions(t, newSubject(t), rand.New(rand.NewPCG(seed, 1)))
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		})
	}
}

func randomSubscriptions(t *testing.T, under subject, rng *rand.Rand) {
	c := under.cache
	names := []string{"a", "b", "c", "hidden1", "hidden2"}
	some := func() []string {
		return slices.DeleteFunc(slices.Clone(names), func(string) bool { return rng.IntN(2) == 0 })
	}
	all := &changes{during: under.during}
	shown := make(map[string]resources.Set)
	var clients []*modelClient
	for i := range 6 {
		group := string("xy"[i%2])
		m := &modelClient{
			client: openStream(t, under.conn, true, "", fmt.Sprint(group, i)), group: group, typ: []string{cds, eds, rds}[i%3],
			names: make(map[string]bool), has: make(map[string]string), wildcard: rng.IntN(2) == 0,
		}
		if m.wildcard {
			m.subscribe(m.typ, "*")
		} else {
			m.subscribeNames(some())
		}
		clients = append(clients, m)
	}
	for range 8 {
		for range 8 {
			switch m := clients[rng.IntN(len(clients))]; rng.IntN(11) {
			case 0, 1, 2:
				group := []string{"", "x", "y"}[rng.IntN(3)]
				var words []string
				for _, typ := range []string{"cds", "eds", "rds"} {
					for _, name := range some() {
						words = append(words, fmt.Sprintf("%s:%s=%d", typ, name, rng.IntN(3)))
					}
				}
				set := setOf(t, words...)
				shown[group] = set
				all.add(rng.IntN(3) == 0, func() { c.Set(group, set) })
			case 3, 4:
				m.subscribeNames(some())
			case 5:
				m.unsubscribeNames(some())
			case 6, 7, 8, 9:
				m.acceptAll()
			case 10:
				synctest.Wait()
			}
		}
		if _, common := shown[""]; !common {
			shown[""] = setOf(t, "cds:a=1")
			all.add(false, func() { c.Set("", shown[""]) })
		}
		all.applyPending()
		for range 10 {
			for _, m := range clients {
				m.acceptAll()
			}
		}
		for _, m := range clients {
			set, own := shown[m.group]
			if !own {
				set = shown[""]
			}
			if want := m.expected(set); !maps.Equal(m.has, want) {
				t.Errorf("node of group %s, wildcard %v, names %v: has %v, want %v", m.group, m.wildcard, m.names, m.has, want)
			}
		}
		unanswered := make(map[string]bool)
		c.Unanswered([]string{cds, eds, rds}, unanswered)
		if len(unanswered) > 0 {
			t.Errorf("unanswered: %v", unanswered)
		}
	}
}

// subscribeNames subscribes to names.
func (m *modelClient) subscribeNames(names []string) {
	if len(names) == 0 {
		names = []string{"a"}
	}
	m.subscribe(m.typ, names...)
	for _, name := range names {
		m.names[name] = true
	}
}

// unsubscribeNames unsubscribes from names and forgets those that the wildcard
// does not cover.
func (m *modelClient) unsubscribeNames(names []string) {
	names = slices.DeleteFunc(names, func(name string) bool { return !m.names[name] })
	if len(names) == 0 {
		return
	}
	m.unsubscribe(m.typ, names...)
	for _, name := range names {
		delete(m.names, name)
		if !m.wildcard {
			delete(m.has, name)
		}
	}
}
