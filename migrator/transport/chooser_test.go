package transport_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
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
)

// TestScenarios runs testdata/*.txt (-rewrite rewrites the expected output) on a Chooser of
// a replica on host n1. The commands:
//
//	transports shm=local tcp    begins anew, with these in order of preference
//	after 10s                   time passes
//	probe shm works|fails       the result of a probe; reprobe: the engine has changed
//	due                         prints the transports to be probed
//	fail b shm | refuse b shm | cancel b shm    a pull from b failed
//	succeed b shm               a pull from b is recorded as failed with a nil error
//	pull b shm [BYTES]          a pull of one second succeeded
//	forget b                    b has left
//	rank b n1 shm tcp           prints the order for pulls from b, on host n1, which has these
//	status                      prints the transports and the paths
func TestScenarios(t *testing.T) {
	testkit.TestScenarios(t, "testdata", func(t *testing.T) testkit.Player { return (&player{now: t0}).do })
}

type player struct {
	chooser *transport.Chooser
	now     time.Time
}

func (p *player) do(words []string) (out []string, err error) {
	c := p.chooser
	list := func(names []string) []string {
		if len(names) == 0 {
			return []string{"none"}
		}
		return []string{strings.Join(names, " ")}
	}
	var names []string
	switch words[0] {
	case "transports":
		var all []transport.Transport
		for _, w := range words[1:] {
			name, reach, _ := strings.Cut(w, "=")
			all = append(all, named{name: name, local: reach == "local"})
		}
		p.chooser = transport.NewChooser(all...)
	case "after":
		d, err := time.ParseDuration(words[1])
		p.now = p.now.Add(d)
		return nil, err
	case "probe":
		c.RecordProbe(words[1], map[string]error{"fails": errLink}[words[2]], p.now)
	case "reprobe":
		c.ReprobeAll()
	case "due":
		for _, t := range c.TransportsToProbe(p.now) {
			names = append(names, t.Name())
		}
		return list(names), nil
	case "fail", "refuse", "cancel", "succeed":
		cause := map[string]error{"fail": errLink, "refuse": transport.ErrRefused, "cancel": context.Canceled}[words[0]]
		if words[0] == "refuse" || words[0] == "cancel" {
			cause = fmt.Errorf("open: %w", cause)
		}
		c.RecordFailure(policies.ReplicaID(words[1]), words[2], cause, p.now)
	case "pull":
		s := transport.Stats{}
		if len(words) > 3 {
			s.Duration = time.Second
			s.Bytes, err = strconv.ParseInt(words[3], 10, 64)
		}
		c.RecordPull(policies.ReplicaID(words[1]), words[2], s, p.now)
	case "forget":
		c.Forget(policies.ReplicaID(words[1]))
	case "rank":
		for _, o := range c.Rank(transport.Pair{Peer: policies.ReplicaID(words[1]), Host: "n1", PeerHost: words[2]}, words[3:], p.now) {
			names = append(names, o.Transport.Name())
		}
		return list(names), nil
	case "status":
		for _, s := range c.Status(p.now) {
			switch {
			case s.Peer == "" && s.Err == nil:
				out = append(out, s.Transport+" works")
			case s.Peer == "":
				out = append(out, fmt.Sprintf("%s fails: %v", s.Transport, s.Err))
			case s.Err != nil:
				out = append(out, fmt.Sprintf("%s %s: backed off for %v: %v", s.Peer, s.Transport, s.RetryIn, s.Err))
			default:
				out = append(out, fmt.Sprintf("%s %s: %d pulls, %.0f B/s", s.Peer, s.Transport, s.Pulls, s.Rate))
			}
		}
	default:
		return nil, errors.New("no such command")
	}
	return out, err
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

// TestPathsAreBounded checks that the least recently used paths are dropped.
func TestPathsAreBounded(t *testing.T) {
	c := transport.NewChooser(named{name: "shm", local: true}, named{name: "tcp"})
	for i := range 5000 {
		c.RecordFailure(policies.ReplicaID(fmt.Sprint("r", i)), "shm", errLink, t0.Add(time.Duration(i)))
	}
	if n := len(c.Status(t0)); n != 2+4096 {
		t.Errorf("%d paths are remembered", n-2)
	}
	for peer, want := range map[policies.ReplicaID]string{"r0": "shm", "r4999": "tcp"} { // the oldest and the newest
		if first := c.Rank(transport.Pair{Peer: peer, Host: "n1", PeerHost: "n1"}, []string{"shm", "tcp"}, t0)[0].Transport.Name(); first != want {
			t.Errorf("the first transport from %s is %s, want %s", peer, first, want)
		}
	}
}
