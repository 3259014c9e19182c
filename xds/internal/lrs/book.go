package lrs

import (
	"maps"
	"net/netip"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/cascadeinfer/cascade/xds/internal/loadestimate"
)

const (
	// DefaultInterval is the time between two reports of a node.
	DefaultInterval = time.Second
	// fresh is how many intervals a report counts.
	fresh = 3
	// forget is how long a node whose stream has ended leaves it open what runs
	// on its endpoints. One that lives has come back by then.
	forget = 10 * time.Second
	// maxKept bounds what the streams of one node have told, in bytes of memory,
	// and endpointSize is what one endpoint or cluster takes of it.
	maxKept      = 16 << 20
	endpointSize = 64
)

// Book is what the nodes have reported last, and how their groups have fared
// lately. It is safe for concurrent use.
type Book struct {
	interval time.Duration
	group    func(*corev3.Node) string

	mu     sync.Mutex
	desks  map[uint64]*desk            // by the number of the stream
	nodes  map[string]map[uint64]*desk // the same, by node
	last   uint64                      // number that was given out
	groups map[string]*record
	totals map[netip.AddrPort]*total // over the desks that are counted
}

// total is what the nodes have told of an address, together.
type total struct {
	active int
	told   uint64
	share  float64
	desks  int // that tell of it
}

// desk is one stream of a node. gRPC clients have several under one id.
type desk struct {
	node, group string
	at          time.Time // of the last report; zero: none yet
	opened      time.Time
	ended       time.Time // zero: it is open
	counted     bool      // its clusters are in the totals
	clusters    []cluster
	kept        int // bytes of them
}

// NewBook returns an empty book. The interval is that of the reports; 0 means
// DefaultInterval. group names the group of a node, by its id and cluster alone,
// and must be pure; nil puts all into the group "".
func NewBook(interval time.Duration, group func(*corev3.Node) string) *Book {
	if interval <= 0 {
		interval = DefaultInterval
	}
	if group == nil {
		group = func(*corev3.Node) string { return "" }
	}
	return &Book{
		interval: interval, group: group, desks: make(map[uint64]*desk), nodes: make(map[string]map[uint64]*desk),
		groups: make(map[string]*record), totals: make(map[netip.AddrPort]*total),
	}
}

// open begins a stream of a node.
func (b *Book) open(now time.Time, id, nodeCluster string) uint64 {
	group := b.group(&corev3.Node{Id: id, Cluster: nodeCluster})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last++
	d := &desk{node: id, group: group, opened: now}
	b.desks[b.last] = d
	if b.nodes[id] == nil {
		b.nodes[id] = make(map[uint64]*desk)
	}
	b.nodes[id][b.last] = d
	return b.last
}

// dropLocked forgets a stream.
func (b *Book) dropLocked(number uint64) {
	d := b.desks[number]
	b.uncountLocked(d)
	delete(b.desks, number)
	delete(b.nodes[d.node], number)
	if len(b.nodes[d.node]) == 0 {
		delete(b.nodes, d.node)
	}
}

// streams counts the open streams of a node.
func (b *Book) streams(id string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.nodes[id] {
		if d.ended.IsZero() {
			n++
		}
	}
	return n
}

// report takes in a message, which takes the place of the stream's last one and
// of whatever the node's ended streams have left. It is false, and nothing is
// taken in, where that is more than one node may tell.
func (b *Book) report(now time.Time, number uint64, clusters []cluster) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.desks[number]
	if d == nil {
		return true
	}
	if d.at.IsZero() {
		for n, old := range b.nodes[d.node] {
			if !old.ended.IsZero() {
				b.dropLocked(n)
			}
		}
	}
	kept := sizeOf(clusters)
	all := kept - d.kept
	for _, other := range b.nodes[d.node] {
		all += other.kept
	}
	if all > maxKept {
		return false
	}
	b.uncountLocked(d)
	d.at, d.clusters, d.kept = now, clusters, kept
	b.countLocked(d)
	var s sample
	for _, c := range clusters {
		s.success += c.success
		s.errors += c.errors
		s.issued += c.issued
	}
	r := b.groups[d.group]
	if r == nil {
		r = new(record)
		b.groups[d.group] = r
	}
	r.add(now, s)
	return true
}

// sizeOf is the bytes of memory that clusters take.
func sizeOf(clusters []cluster) (bytes int) {
	for _, c := range clusters {
		bytes += len(c.name) + len(c.service) + endpointSize*(1+len(c.endpoints))
	}
	return bytes
}

// close ends a stream. What it told counts until it is late.
func (b *Book) close(now time.Time, number uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d := b.desks[number]; d != nil {
		d.ended = now
		if d.at.IsZero() {
			b.dropLocked(number)
		}
	}
}

// expire forgets the nodes that are gone, and the past of groups.
func (b *Book) expire(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settleLocked(now)
	for number, d := range b.desks {
		if !d.ended.IsZero() && now.Sub(d.ended) >= forget {
			b.dropLocked(number)
		}
	}
	maps.DeleteFunc(b.groups, func(_ string, r *record) bool { return r.trim(now) })
}

// counts says that the stream's last report is not late.
func (b *Book) counts(now time.Time, d *desk) bool {
	return !d.at.IsZero() && now.Sub(d.at) <= fresh*b.interval
}

// countLocked adds what a stream has told to the totals.
func (b *Book) countLocked(d *desk) {
	d.counted = true
	for _, c := range d.clusters {
		for _, e := range c.endpoints {
			t := b.totals[e.address]
			if t == nil {
				t = new(total)
				b.totals[e.address] = t
			}
			t.desks++
			t.active += e.active
			t.told += e.told
			t.share += e.share
		}
	}
}

// uncountLocked takes it out again.
func (b *Book) uncountLocked(d *desk) {
	if !d.counted {
		return
	}
	d.counted = false
	for _, c := range d.clusters {
		for _, e := range c.endpoints {
			t := b.totals[e.address]
			t.active -= e.active
			t.told -= e.told
			t.share -= e.share
			if t.desks--; t.desks == 0 {
				delete(b.totals, e.address)
			}
		}
	}
}

// settleLocked takes out who has fallen silent, and reports whether anybody is
// left.
func (b *Book) settleLocked(now time.Time) (any bool) {
	for _, d := range b.desks {
		if b.counts(now, d) {
			any = true
			continue
		}
		b.uncountLocked(d)
	}
	return any
}

// Loads implements fleet.Proxies.
func (b *Book) Loads(now time.Time) map[netip.AddrPort]loadestimate.ProxyReport {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.settleLocked(now) {
		return nil
	}
	out := make(map[netip.AddrPort]loadestimate.ProxyReport, len(b.totals))
	for a, t := range b.totals {
		s := loadestimate.ProxyReport{Requests: t.active, Answers: t.told}
		if t.told > 0 {
			s.Share = t.share / float64(t.told)
		}
		out[a] = s
	}
	return out
}

// Active is how many requests the nodes have in progress on endpoints of a
// cluster, or of all clusters that take their endpoints from one assignment; an
// address is IP:port. They are known when every node has reported
// within three intervals, and some node has: what a node that fell silent has in
// progress is not known until it is forgotten, ten seconds after its stream has
// ended. Requests that a node attributes to no endpoint are counted.
func (b *Book) Active(now time.Time, name string, addresses []string) (requests int, known bool) {
	wanted := make(map[netip.AddrPort]bool, len(addresses))
	for _, text := range addresses {
		a, err := netip.ParseAddrPort(text)
		if err != nil {
			return 0, false
		}
		wanted[a] = true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	known = true
	any := false
	for _, d := range b.desks {
		switch {
		case b.counts(now, d):
			any = true
		case d.ended.IsZero() || now.Sub(d.ended) < forget:
			known = false
			continue
		default:
			continue
		}
		for _, c := range d.clusters {
			if c.name != name && c.service != name {
				continue
			}
			requests += c.unplaced
			for _, e := range c.endpoints {
				if wanted[e.address] {
					requests += e.active
				}
			}
		}
	}
	return requests, known && any
}

// Reporting lists the ids of the nodes whose last report is not late.
func (b *Book) Reporting(now time.Time) map[string]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[string]bool)
	for _, d := range b.desks {
		if b.counts(now, d) {
			out[d.node] = true
		}
	}
	return out
}
