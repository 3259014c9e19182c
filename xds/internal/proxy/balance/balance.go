// Package balance chooses a cluster's endpoint for a request and records the results:
// weighted round robin over the priority that Envoy would choose, or the endpoint of the
// request's key, with outlier ejection.
//
// It opens no connection, makes no health checks and starts no goroutine. Invariant:
// without a control plane, a priority that has lost its hosts is replaced by the next
// one, and used again when its ejections end.
package balance

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/xds/client"
)

// Host is one endpoint. It keeps its history as long as the cluster has its address. The
// exported fields do not change.
type Host struct {
	Address  string
	Load     Load         // of the requests that are sent to it
	priority atomic.Int32 // of the last update; retries leave it out

	// consecutive failures; reset by a success
	errors5xx, gateway, local atomic.Int32

	// guarded by Balancer.mu
	ejected   bool
	until     time.Time // end of the ejection
	ejections int       // ejections, minus one per interval without ejection
	updatedAt time.Time // when times was last brought up to date
}

// Balancer balances over the endpoints of one cluster. All methods may be called from
// several goroutines.
type Balancer struct {
	mu         sync.Mutex
	cluster    *client.Cluster
	assign     *client.Assignment
	hosts      map[string]*Host
	priorities []priority
	loads      []int // percent per priority, in sum 100 or 0
	ejected    int
	rng        *rand.Rand

	nextReturn atomic.Int64 // when the next ejection ends, Unix ns; 0 = none
}

// priority is one priority.
type priority struct {
	members   []member
	available int
	inPanic   bool      // too few hosts are available: health is ignored
	schedule  *schedule // over the available ones, or over all in panic
	ring      []keyed   // the same hosts, if the cluster chooses by keys
}

type member struct {
	host    *Host
	weight  float64
	healthy bool // by EDS
}

// New returns a balancer without endpoints. The seed determines where the first round of
// every schedule starts.
func New(seed uint64) *Balancer {
	return &Balancer{hosts: make(map[string]*Host), rng: rand.New(rand.NewPCG(seed, seed))}
}

// Update sets the cluster's settings and endpoints, nil for none. Hosts that stay keep
// their ejections and their turn.
func (b *Balancer) Update(c *client.Cluster, a *client.Assignment) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cluster == c && b.assign == a {
		return
	}
	b.cluster, b.assign = c, a
	if a == nil {
		a = &client.Assignment{}
	}
	phases := b.phasesLocked()
	kept := make(map[string]*Host)
	b.priorities = make([]priority, len(a.Priorities))
	for p, endpoints := range a.Priorities {
		local := make(map[client.Locality]float64) // Σ weight
		for _, e := range endpoints {
			local[e.Locality] += float64(e.Weight)
		}
		for _, e := range endpoints {
			h := kept[e.Address]
			if h == nil {
				if h = b.hosts[e.Address]; h == nil {
					h = &Host{Address: e.Address}
				}
				kept[e.Address] = h
				h.priority.Store(int32(p))
			}
			m := member{host: h, weight: float64(e.Weight), healthy: e.Healthy}
			if c.LocalityWeighted {
				m.weight = float64(e.LocalityWeight) * float64(e.Weight) / local[e.Locality]
			}
			b.priorities[p].members = append(b.priorities[p].members, m)
		}
	}
	b.hosts = kept
	b.rebuildLocked(phases)
}

// phasesLocked collects the turns of all hosts.
func (b *Balancer) phasesLocked() map[*Host]float64 {
	phases := make(map[*Host]float64)
	for _, t := range b.priorities {
		if t.schedule != nil {
			t.schedule.phases(phases)
		}
	}
	return phases
}

// rebuildLocked recomputes everything that depends on health.
func (b *Balancer) rebuildLocked(phases map[*Host]float64) {
	b.ejected = 0
	next := int64(0)
	for _, h := range b.hosts {
		if h.ejected {
			b.ejected++
			if t := h.until.UnixNano(); next == 0 || t < next {
				next = t
			}
		}
	}
	b.nextReturn.Store(next)
	for i := range b.priorities {
		t := &b.priorities[i]
		t.available = 0
		for _, m := range t.members {
			if m.healthy && !m.host.ejected {
				t.available++
			}
		}
	}
	b.balanceLocked()
	for i := range b.priorities {
		t := &b.priorities[i]
		t.schedule, t.ring = new(schedule), nil
		for _, m := range t.members {
			if t.inPanic || m.healthy && !m.host.ejected {
				phase, ok := phases[m.host]
				if !ok {
					phase = 1 - b.rng.Float64()
				}
				t.schedule.add(m.host, m.weight, phase)
				if b.cluster.HashKeys {
					t.ring = append(t.ring, newKeyed(m))
				}
			}
		}
		t.schedule.init()
	}
}

// balanceLocked computes the load of each priority and which ones are in panic, as
// Envoy's LoadBalancerBase does.
func (b *Balancer) balanceLocked() {
	health := b.healthLocked(nil)
	total := normalizedTotal(health)
	threshold := b.cluster.PanicThreshold
	b.loads = make([]int, len(b.priorities))
	if total == 0 && threshold == 0 {
		for i := range b.priorities {
			b.priorities[i].inPanic = false
		}
		if len(b.loads) > 0 {
			b.loads[0] = 100
		}
		return
	}
	all := true
	for i := range b.priorities {
		t := &b.priorities[i]
		t.inPanic = total < 100 && percent(t.available, len(t.members)) < threshold
		all = all && t.inPanic
	}
	if all {
		// All are in panic: distribute by size.
		hosts := 0
		for _, t := range b.priorities {
			hosts += len(t.members)
		}
		rest, first := 100, -1
		for i, t := range b.priorities {
			if hosts > 0 && len(t.members) > 0 {
				b.loads[i] = 100 * len(t.members) / hosts
				rest -= b.loads[i]
				if first < 0 {
					first = i
				}
			}
		}
		if first >= 0 {
			b.loads[first] += rest
		}
		return
	}
	distribute(b.loads, health, total)
}

// healthLocked returns what each priority can take, in percent of the load: its available
// share times the overprovisioning factor, at most 100. Priorities in without count as
// 0.
func (b *Balancer) healthLocked(without []bool) []int {
	factor := 100
	if b.assign != nil {
		factor = int(b.assign.OverprovisioningFactor)
	}
	health := make([]int, len(b.priorities))
	for i, t := range b.priorities {
		if len(t.members) > 0 && (i >= len(without) || !without[i]) {
			health[i] = min(100, factor*t.available/len(t.members))
		}
	}
	return health
}

// normalizedTotal returns the sum of the health, at most 100.
func normalizedTotal(health []int) int {
	sum := 0
	for _, h := range health {
		sum += h
	}
	return min(sum, 100)
}

// distribute fills the priorities in order; rounding goes to the first.
func distribute(load, health []int, total int) {
	rest, first := 100, -1
	for i, h := range health {
		if h > 0 && first < 0 {
			first = i
		}
		load[i] = 0
		if total > 0 {
			load[i] = min(rest, 100*h/total)
		}
		rest -= load[i]
	}
	if first >= 0 {
		load[first] += rest
	}
}

// percent returns part as a percentage of whole; 0 if whole is 0.
func percent(part, whole int) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}

// Attempts records the attempts of a request. The zero value is for a first attempt.
type Attempts struct {
	// Key chooses the host in a cluster with HashKeys; "" chooses in turn.
	Key   string
	hosts []*Host
	// without are the priorities left out of this attempt's choice.
	without []bool
}

// Add records an attempt on a host.
func (t *Attempts) Add(h *Host) { t.hosts = append(t.hosts, h) }

// Pick chooses a host, or returns nil if the cluster has none available. retry is used
// only after a first attempt and may be nil.
func (b *Balancer) Pick(now time.Time, t *Attempts, retry *client.RetryPolicy) *Host {
	b.mu.Lock()
	defer b.mu.Unlock()
	if back := b.nextReturn.Load(); back != 0 && now.UnixNano() >= back {
		b.returnLocked(now)
	}
	load := b.loads
	again := len(t.hosts) > 0 && retry != nil
	if again && retry.PriorityFrequency > 0 {
		load = b.withoutTriedLocked(t, retry.PriorityFrequency)
	}
	if b.cluster != nil && b.cluster.HashKeys && t.Key != "" {
		var tried []*Host
		if again && retry.ExcludeHosts {
			tried = t.hosts
		}
		return b.pickByKeyLocked(load, t.Key, tried)
	}
	draws := 1
	if again && retry.ExcludeHosts {
		draws += retry.HostAttempts
	}
	var h *Host
	for range draws {
		if h = b.drawLocked(load); h == nil || !again || !retry.ExcludeHosts || !slices.Contains(t.hosts, h) {
			break
		}
	}
	return h
}

// drawLocked chooses a priority by its load and takes the next host there.
func (b *Balancer) drawLocked(load []int) *Host {
	dice := b.rng.IntN(100)
	for i, l := range load {
		if dice < l {
			return b.priorities[i].schedule.pick()
		}
		dice -= l
	}
	return nil
}

// withoutTriedLocked is Envoy's previous_priorities: the load with the
// priorities of earlier attempts left out, until none is left.
func (b *Balancer) withoutTriedLocked(t *Attempts, frequency int) []int {
	if len(t.hosts) < frequency {
		return b.loads
	}
	if len(t.hosts)%frequency == 0 || len(t.without) != len(b.priorities) {
		t.without = make([]bool, len(b.priorities))
		for _, h := range t.hosts {
			if p := int(h.priority.Load()); p < len(t.without) {
				t.without[p] = true
			}
		}
	}
	health := b.healthLocked(t.without)
	total := normalizedTotal(health)
	if total == 0 {
		return b.loads // all have been tried: start over
	}
	load := make([]int, len(health))
	distribute(load, health, total)
	return load
}

// Size returns the number of endpoints and how many of them are ejected.
func (b *Balancer) Size() (hosts, ejected int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.hosts), b.ejected
}
