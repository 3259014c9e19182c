package reports

import (
	"maps"
	"net/netip"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/cascadeinfer/cascade/policies/balance"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

const (
	// DefaultInterval is the time between two reports of a node.
	DefaultInterval = time.Second
	// maxIntervals is how many intervals a report counts.
	maxIntervals = 3
	// forgetAfter is how long after the end of a node's stream its requests in progress
	// are unknown. A live node has reconnected by then.
	forgetAfter = 10 * time.Second
	// maxNodeBytes bounds the memory for the reports of one node's streams, and
	// endpointSize is the part of one endpoint or cluster.
	maxNodeBytes = 16 << 20
	endpointSize = 64
)

// Book holds the last reports of the nodes, and the recent outcomes of requests by
// group of nodes. It is safe for concurrent use.
type Book struct {
	interval time.Duration
	group    func(*corev3.Node) string

	mu     sync.Mutex
	byID   map[uint64]*streamState            // by the id of the stream
	nodes  map[string]map[uint64]*streamState // the same, by node
	lastID uint64                             // of a stream
	groups map[string]*record
	totals map[netip.AddrPort]*total // over the streams that are counted
}

// total sums the reports of an address over the nodes.
type total struct {
	active  int
	answers uint64
	share   float64
	streams int // that report it

	succeeded, failed uint64
}

// streamState is one stream of a node. gRPC clients open several under one node id.
type streamState struct {
	node, group string
	at          time.Time // of the last report; zero: none yet
	opened      time.Time
	ended       time.Time // zero: it is open
	counted     bool      // its clusters are in the totals
	clusters    []cluster
	size        int // bytes of them
	problems    []loadreport.Problem
}

// NewBook returns an empty book. interval is the time between two reports; 0 means
// DefaultInterval. group returns the group of a node, given only its id and cluster,
// and must be pure; nil puts all nodes into the group "".
func NewBook(interval time.Duration, group func(*corev3.Node) string) *Book {
	if interval <= 0 {
		interval = DefaultInterval
	}
	if group == nil {
		group = func(*corev3.Node) string { return "" }
	}
	return &Book{
		interval: interval, group: group, byID: make(map[uint64]*streamState), nodes: make(map[string]map[uint64]*streamState),
		groups: make(map[string]*record), totals: make(map[netip.AddrPort]*total),
	}
}

// open adds a stream of a node and returns its id.
func (b *Book) open(now time.Time, id, nodeCluster string) uint64 {
	group := b.group(&corev3.Node{Id: id, Cluster: nodeCluster})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lastID++
	d := &streamState{node: id, group: group, opened: now}
	b.byID[b.lastID] = d
	if b.nodes[id] == nil {
		b.nodes[id] = make(map[uint64]*streamState)
	}
	b.nodes[id][b.lastID] = d
	return b.lastID
}

// removeLocked removes a stream.
func (b *Book) removeLocked(number uint64) {
	d := b.byID[number]
	b.uncountLocked(d)
	delete(b.byID, number)
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

// report applies a message with the node's problems, which replaces the stream's last one
// and those of the node's ended streams. It returns false, and applies nothing, if the
// reports of the node would exceed maxNodeBytes.
func (b *Book) report(now time.Time, number uint64, clusters []cluster, problems ...loadreport.Problem) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.byID[number]
	if d == nil {
		return true
	}
	if d.at.IsZero() {
		for n, old := range b.nodes[d.node] {
			if !old.ended.IsZero() {
				b.removeLocked(n)
			}
		}
	}
	size := sizeOf(clusters)
	all := size - d.size
	for _, other := range b.nodes[d.node] {
		all += other.size
	}
	if all > maxNodeBytes {
		return false
	}
	b.uncountLocked(d)
	d.at, d.clusters, d.size, d.problems = now, clusters, size, problems
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

// sizeOf returns the bytes of memory that clusters take.
func sizeOf(clusters []cluster) (bytes int) {
	for _, c := range clusters {
		bytes += len(c.name) + len(c.service) + endpointSize*(1+len(c.endpoints))
	}
	return bytes
}

// close ends a stream. Its last report counts for three intervals.
func (b *Book) close(now time.Time, number uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d := b.byID[number]; d != nil {
		d.ended = now
		if d.at.IsZero() {
			b.removeLocked(number)
		}
	}
}

// expire removes the nodes that have disconnected, and old samples of groups.
func (b *Book) expire(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expireLateLocked(now)
	for number, d := range b.byID {
		if !d.ended.IsZero() && now.Sub(d.ended) >= forgetAfter {
			b.removeLocked(number)
		}
	}
	maps.DeleteFunc(b.groups, func(_ string, r *record) bool { return r.trim(now) })
}

// counts reports whether the stream's last report still counts.
func (b *Book) counts(now time.Time, d *streamState) bool {
	return !d.at.IsZero() && now.Sub(d.at) <= maxIntervals*b.interval
}

// countLocked adds the last report of a stream to the totals.
func (b *Book) countLocked(d *streamState) {
	d.counted = true
	for _, c := range d.clusters {
		for _, e := range c.endpoints {
			t := b.totals[e.address]
			if t == nil {
				t = new(total)
				b.totals[e.address] = t
			}
			t.streams++
			t.active += e.active
			t.answers += e.answers
			t.share += e.share
			t.succeeded += e.succeeded
			t.failed += e.failed
		}
	}
}

// uncountLocked subtracts the last report of a stream from the totals.
func (b *Book) uncountLocked(d *streamState) {
	if !d.counted {
		return
	}
	d.counted = false
	for _, c := range d.clusters {
		for _, e := range c.endpoints {
			t := b.totals[e.address]
			t.active -= e.active
			t.answers -= e.answers
			t.share -= e.share
			t.succeeded -= e.succeeded
			t.failed -= e.failed
			if t.streams--; t.streams == 0 {
				delete(b.totals, e.address)
			}
		}
	}
}

// expireLateLocked subtracts the late reports from the totals, and reports whether any
// report still counts.
func (b *Book) expireLateLocked(now time.Time) (any bool) {
	for _, d := range b.byID {
		if b.counts(now, d) {
			any = true
			continue
		}
		b.uncountLocked(d)
	}
	return any
}

// Loads implements fleet.Proxies.
func (b *Book) Loads(now time.Time) map[netip.AddrPort]balance.ProxyReport {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.expireLateLocked(now) {
		return nil
	}
	out := make(map[netip.AddrPort]balance.ProxyReport, len(b.totals))
	for a, t := range b.totals {
		s := balance.ProxyReport{Requests: t.active, Answers: t.answers, Succeeded: t.succeeded, Failed: t.failed}
		if t.answers > 0 {
			s.Share = t.share / float64(t.answers)
		}
		out[a] = s
	}
	return out
}

// Active returns how many requests the nodes have in progress on endpoints of a
// cluster, or of all clusters that take their endpoints from one assignment; an address
// is IP:port. The number is known if there are nodes and all have reported within three
// intervals: the requests of a node that stops reporting are unknown until ten seconds
// after the end of its stream. Requests that a node attributes to no endpoint are
// included.
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
	for _, d := range b.byID {
		switch {
		case b.counts(now, d):
			any = true
		case d.ended.IsZero() || now.Sub(d.ended) < forgetAfter:
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

// Problems returns what embedded proxies lack, by node, as far as their last reports still count.
func (b *Book) Problems(now time.Time) map[string][]loadreport.Problem {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[string][]loadreport.Problem)
	for _, d := range b.byID {
		if len(d.problems) > 0 && b.counts(now, d) {
			out[d.node] = d.problems
		}
	}
	return out
}
