package transport_test

import (
	"cmp"
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
	list := func(all []transport.Transport) []string { return []string{cmp.Or(namesOf(all), "none")} }
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
		return list(c.TransportsToProbe(p.now)), nil
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
		return list(c.Rank(transport.Pair{Peer: policies.ReplicaID(words[1]), Host: "n1", PeerHost: words[2]}, words[3:], p.now)), nil
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
		"P2P":           {near, gpu("n1", 1, links.Peer{Index: 0, Asked: true, Read: true, Write: true}), "cuda tcp verbs shm"},
		"no P2P":        {refused, gpu("n1", 1, links.Peer{Index: 0, Asked: true}), "tcp verbs cuda shm"},
		"one fabric":    {rdma(near, "InfiniBand"), rdma(gpu("n2", 1, links.Peer{}), "InfiniBand"), "verbs tcp"},
		"two fabrics":   {rdma(near, "InfiniBand"), rdma(gpu("n2", 1, links.Peer{}), "Ethernet"), "tcp verbs"},
		"RDMA at one":   {rdma(near, "InfiniBand"), gpu("n2", 1, links.Peer{}), "tcp verbs"},
		"links unknown": {links.Topology{Host: "n1"}, links.Topology{Host: "n2"}, "tcp verbs"},
		"one unknown":   {links.Topology{Host: "n1"}, near, "tcp verbs cuda shm"},
	} {
		pair := transport.Pair{Peer: "b", Host: x.to.Host, PeerHost: x.from.Host, Paths: links.Paths(x.from, x.to)}
		if got := namesOf(c.Rank(pair, all, t0)); got != x.want {
			t.Errorf("%s: %s, want %s", what, got, x.want)
		}
	}
	// A path that fails is backed off, however good its link is.
	c.RecordFailure("b", "cuda", errLink, t0)
	pair := transport.Pair{Peer: "b", Host: "n1", PeerHost: "n1", Paths: links.Paths(near, near)}
	if got := namesOf(c.Rank(pair, all, t0)); !strings.HasSuffix(got, " cuda") {
		t.Errorf("after a failure of cuda: %s", got)
	}
}

func namesOf(list []transport.Transport) string {
	var names []string
	for _, t := range list {
		names = append(names, t.Name())
	}
	return strings.Join(names, " ")
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
		if first := c.Rank(transport.Pair{Peer: peer, Host: "n1", PeerHost: "n1"}, []string{"shm", "tcp"}, t0)[0].Name(); first != want {
			t.Errorf("the first transport from %s is %s, want %s", peer, first, want)
		}
	}
}
