package transport_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// named is a transport that has a name and a reach, and nothing else.
type named struct {
	transport.Transport
	name  string
	local bool // reaches its own host only
}

func (n named) Name() string                  { return n.name }
func (n named) CanReach(from, to string) bool { return !n.local || from == to }

var (
	t0      = time.Unix(1000, 0)
	errLink = errors.New("the link is down")
	both    = []string{"shm", "tcp"}
)

func chooser() *transport.Chooser {
	return transport.NewChooser(named{name: "shm", local: true}, named{name: "tcp"})
}

// TestReprobeAll checks that a change of the engine makes every transport due, once.
func TestReprobeAll(t *testing.T) {
	c := chooser()
	due := func() int { return len(c.TransportsToProbe(t0.Add(time.Second))) }
	c.RecordProbe("shm", nil, t0)
	c.RecordProbe("tcp", errLink, t0)
	if n := due(); n != 0 {
		t.Errorf("%d transports are due after their probes", n)
	}
	c.ReprobeAll()
	if n := due(); n != 2 {
		t.Errorf("%d transports are due after a change", n)
	}
	c.RecordProbe("shm", nil, t0)
	if n := due(); n != 1 {
		t.Errorf("%d transports are due after one probe", n)
	}
}

func order(c *transport.Chooser, peer policies.ReplicaID, node string, names []string, now time.Time) string {
	var out []string
	for _, o := range c.Rank(transport.Pair{Peer: peer, Host: "n1", PeerHost: node}, names, now) {
		out = append(out, o.Transport.Name())
	}
	return strings.Join(out, " ")
}

func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func TestRankByPreferenceAndReach(t *testing.T) {
	c := chooser()
	expect(t, "same host", order(c, "b", "n1", both, t0), "shm tcp")
	expect(t, "other host", order(c, "b", "n2", both, t0), "tcp")
	expect(t, "peer without shm", order(c, "b", "n1", []string{"verbs", "tcp"}, t0), "tcp")
	expect(t, "peer without any", order(c, "b", "n2", nil, t0), "")
}

// TestRankByLinks checks that links decide first, and that failures override them.
func TestRankByLinks(t *testing.T) {
	c := transport.NewChooser(named{name: "cuda", local: true}, named{name: "shm", local: true}, named{name: "verbs"}, named{name: "tcp"})
	all := []string{"tcp", "verbs", "shm", "cuda"}
	gpu := func(node string, index int, peer links.Peer) links.Topology {
		return links.Topology{Host: node, Known: true, GPU: &links.GPU{Index: index, PCIe: 32 * links.Gigabyte, Peers: []links.Peer{peer}}}
	}
	rdma := func(s links.Topology, layer string) links.Topology {
		s.RDMA, s.PeerMemory = &links.Port{Name: "mlx5_0", Layer: layer, Rate: 50 * links.Gigabyte, Distance: links.Switch}, true
		return s
	}
	near := gpu("n1", 0, links.Peer{Index: 1, Distance: links.Switch, Asked: true, Read: true, Write: true})
	refused := gpu("n1", 0, links.Peer{Index: 1, Distance: links.Switch, Asked: true})
	for what, x := range map[string]struct {
		from, to links.Topology
		want     string
	}{
		"P2P":           {near, gpu("n1", 1, links.Peer{Index: 0, Asked: true, Read: true, Write: true}), "cuda: P2P over PCIe; tcp: loopback; verbs: no known link offers it; shm: tried last: both pools are on GPUs"},
		"no P2P":        {refused, gpu("n1", 1, links.Peer{Index: 0, Asked: true}), "tcp: loopback; verbs: no known link offers it; cuda: tried last: no NVLink between them, and the driver does not let one read the other; shm: tried last: both pools are on GPUs"},
		"one fabric":    {rdma(near, "InfiniBand"), rdma(gpu("n2", 1, links.Peer{}), "InfiniBand"), "verbs: mlx5_0 to mlx5_0; tcp: one connection"},
		"two fabrics":   {rdma(near, "InfiniBand"), rdma(gpu("n2", 1, links.Peer{}), "Ethernet"), "tcp: one connection; verbs: tried last: mlx5_0 of host n1 speaks InfiniBand"},
		"RDMA at one":   {rdma(near, "InfiniBand"), gpu("n2", 1, links.Peer{}), "tcp: one connection; verbs: tried last: host n2 has no RDMA port"},
		"links unknown": {links.Topology{Host: "n1"}, links.Topology{Host: "n2"}, "tcp: one connection; verbs: tried last: the topology of host"},
		"one unknown":   {links.Topology{Host: "n1"}, near, "tcp: loopback; verbs: no known link offers it; cuda: tried last: the topology of host; shm: tried last: one pool is on a GPU"},
	} {
		pair := transport.Pair{Peer: "b", Host: x.to.Host, PeerHost: x.from.Host, Paths: links.Paths(x.from, x.to)}
		got := c.Rank(pair, all, t0)
		want := strings.Split(x.want, "; ")
		for i, o := range got {
			if i >= len(want) || !strings.HasPrefix(o.Transport.Name()+": "+o.Reason, want[i]) {
				t.Errorf("%s: rank %d is %s: %s, want %q", what, i, o.Transport.Name(), o.Reason, x.want)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %d transports", what, len(got))
		}
	}
	// A path that fails is backed off, however good its link is.
	c.RecordFailure("b", "cuda", errLink, t0)
	got := c.Rank(transport.Pair{Peer: "b", Host: "n1", PeerHost: "n1", Paths: links.Paths(near, near)}, all, t0)
	if last := got[len(got)-1]; last.Transport.Name() != "cuda" || last.Reason != "backed off for 1s: the link is down" {
		t.Errorf("the last transport is %s: %s", last.Transport.Name(), last.Reason)
	}
	// Without paths the order is that of preference, and the reason says so.
	if o := c.Rank(transport.Pair{Peer: "c", Host: "n1", PeerHost: "n1"}, all, t0)[0]; o.Transport.Name() != "cuda" || !strings.Contains(o.Reason, "in order of preference") {
		t.Errorf("the first transport is %s: %s", o.Transport.Name(), o.Reason)
	}
}

func TestFailuresBackOff(t *testing.T) {
	c := chooser()
	now := t0
	for i, backoff := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		c.RecordFailure("b", "shm", errLink, now)
		backoff *= time.Second
		expect(t, fmt.Sprint("during backoff ", i), order(c, "b", "n1", both, now.Add(backoff-1)), "tcp shm")
		expect(t, fmt.Sprint("after backoff ", i), order(c, "b", "n1", both, now.Add(backoff)), "shm tcp")
		expect(t, "another peer", order(c, "c", "n1", both, now), "shm tcp")
		now = now.Add(backoff)
	}
	// One successful pull ends the backoff, but does not reset it.
	c.RecordPull("b", "shm", transport.Stats{}, now)
	expect(t, "after a successful pull", order(c, "b", "n1", both, now), "shm tcp")
	c.RecordFailure("b", "shm", errLink, now)
	expect(t, "failed again", order(c, "b", "n1", both, now.Add(59*time.Second)), "tcp shm")
	for range 3 {
		c.RecordPull("b", "shm", transport.Stats{}, now)
	}
	c.RecordFailure("b", "shm", errLink, now)
	expect(t, "failed after a reset", order(c, "b", "n1", both, now.Add(time.Second)), "shm tcp")
	// If all paths are backed off, the one whose backoff ends first comes first.
	c.RecordFailure("b", "shm", errLink, now)
	c.RecordFailure("b", "tcp", errLink, now)
	expect(t, "all backed off", order(c, "b", "n1", both, now), "tcp shm")
	c.Forget("b")
	expect(t, "forgotten", order(c, "b", "n1", both, now), "shm tcp")
}

func TestRefusalsAndCancellationsAreIgnored(t *testing.T) {
	c := chooser()
	c.RecordFailure("b", "shm", fmt.Errorf("open: %w", transport.ErrRefused), t0)
	c.RecordFailure("b", "shm", fmt.Errorf("pull: %w", context.Canceled), t0)
	c.RecordFailure("b", "shm", nil, t0)
	expect(t, "order", order(c, "b", "n1", both, t0), "shm tcp")
}

func TestProbes(t *testing.T) {
	c := chooser()
	due := func(now time.Time) string {
		var out []string
		for _, t := range c.TransportsToProbe(now) {
			out = append(out, t.Name())
		}
		return strings.Join(out, " ")
	}
	expect(t, "at first", due(t0), "shm tcp")
	c.RecordProbe("shm", errLink, t0)
	c.RecordProbe("tcp", nil, t0)
	expect(t, "probed", due(t0), "")
	expect(t, "unusable", order(c, "b", "n1", both, t0), "tcp")
	expect(t, "soon", due(t0.Add(10*time.Second)), "shm")
	expect(t, "later", due(t0.Add(time.Minute)), "shm tcp")
	c.RecordProbe("shm", nil, t0)
	expect(t, "usable again", order(c, "b", "n1", both, t0), "shm tcp")
	c.RecordFailure("b", "tcp", errLink, t0)
	expect(t, "after a failed pull", due(t0), "tcp")
}

func TestStatus(t *testing.T) {
	c := chooser()
	c.RecordProbe("shm", errLink, t0)
	c.RecordPull("c", "tcp", transport.Stats{Bytes: 1 << 20, Duration: time.Second}, t0)
	c.RecordPull("c", "tcp", transport.Stats{Bytes: 9 << 20, Duration: time.Second}, t0)
	c.RecordFailure("b", "tcp", errLink, t0)
	got := fmt.Sprint(c.Status(t0.Add(time.Second / 4)))
	want := fmt.Sprint([]transport.Path{
		{Transport: "shm", Err: errLink}, {Transport: "tcp"},
		{Peer: "b", Transport: "tcp", Err: errLink, RetryIn: 3 * time.Second / 4},
		{Peer: "c", Transport: "tcp", Pulls: 2, Rate: 2 << 20},
	})
	expect(t, "status", got, want)
}

// TestPathsAreBounded checks that the least recently used paths are dropped.
func TestPathsAreBounded(t *testing.T) {
	c := chooser()
	for i := range 5000 {
		c.RecordFailure(policies.ReplicaID(fmt.Sprint("r", i)), "shm", errLink, t0.Add(time.Duration(i)))
	}
	if n := len(c.Status(t0)); n != 2+4096 {
		t.Errorf("%d paths are remembered", n-2)
	}
	expect(t, "the oldest", order(c, "r0", "n1", both, t0), "shm tcp")
	expect(t, "the newest", order(c, "r4999", "n1", both, t0), "tcp shm")
}
