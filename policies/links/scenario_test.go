package links_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/links"
)

// TestScenarios runs testdata/*.txt (-rewrite rewrites the expected output). The commands:
//
//	site r0 node=a known gpu=0 addr=g0 uuid=u0 switch=18x25 pcie=32 copy=2000 peer=1:g1:4x25:PIX:rwn
//	     cuda=… verbs=… rdma=mlx5_0/InfiniBand/50/PIX[/subnet] peermem tcp=12 lost=… absent mig
//	defaults node=375 between=25 bound=50    in GB/s
//	ways r0 r1       every way, in order
//	best             the way of every ordered pair, by the defaults
func TestScenarios(t *testing.T) { testkit.TestScenarios(t, "testdata", newPlayer) }

// newPlayer returns a player of a fleet without replicas.
func newPlayer(t *testing.T) testkit.Player {
	sites, order, d := map[string]links.Topology{}, []string(nil), links.Rates{}
	return func(words []string) (out []string, err error) {
		switch words[0] {
		case "site":
			if _, ok := sites[words[1]]; !ok {
				order = append(order, words[1])
			}
			sites[words[1]] = site(t, words[2:])
		case "defaults":
			for _, w := range words[1:] {
				key, value, _ := strings.Cut(w, "=")
				*map[string]*links.Rate{"node": &d.SameHost, "between": &d.BetweenHosts, "bound": &d.MaxBetweenHosts}[key] = rate(t, value)
			}
		case "ways":
			for _, w := range links.Paths(sites[words[1]], sites[words[2]]) {
				out = append(out, describe(w))
			}
		case "best":
			for _, a := range order {
				for _, b := range order {
					if a != b {
						out = append(out, fmt.Sprintf("%s %s: %s", a, b, describe(d.BestPath(sites[a], sites[b]))))
					}
				}
			}
		default:
			return nil, fmt.Errorf("no command %q", words[0])
		}
		return out, nil
	}
}

func describe(w links.Path) string {
	if w.Closed {
		return fmt.Sprintf("no %s (%s): %s", w.Transport, w.Kind, w.Reason)
	}
	return fmt.Sprintf("%s: %s, %s, %d µs: %s", w.Transport, w.Kind, w.Rate, w.Latency, w.Reason)
}

func site(t *testing.T, words []string) (s links.Topology) {
	gpu := func() *links.GPU {
		if s.GPU == nil {
			s.GPU = &links.GPU{}
		}
		return s.GPU
	}
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "node":
			s.Host = value
		case "known":
			s.Known = true
		case "gpu":
			gpu().Index = count(t, value)
		case "addr":
			gpu().Address = value
		case "uuid":
			gpu().UUID = value
		case "lost":
			gpu().Lost = value
		case "absent":
			gpu().Absent = true
		case "mig":
			gpu().MIG = true
		case "pcie":
			gpu().PCIe = rate(t, value)
		case "copy":
			gpu().Copy = rate(t, value)
		case "switch":
			gpu().Switched = bundle(t, value)
		case "peer":
			f := strings.Split(value, ":")
			p := links.Peer{Index: count(t, f[0]), Address: f[1], NVLinks: bundle(t, f[2])}
			testkit.NoError(t, p.Distance.UnmarshalText([]byte(f[3])))
			if len(f) > 4 {
				p.Asked, p.Read, p.Write, p.NVLink = true, strings.Contains(f[4], "r"), strings.Contains(f[4], "w"), strings.Contains(f[4], "n")
			}
			gpu().Peers = append(gpu().Peers, p)
		case "cuda":
			s.CUDA = value
		case "verbs":
			s.Verbs = value
		case "peermem":
			s.PeerMemory = true
		case "tcp":
			s.TCP = rate(t, value)
		case "rdma":
			f := strings.Split(value, "/")
			s.RDMA = &links.Port{Name: f[0], Layer: f[1], Rate: rate(t, f[2])}
			testkit.NoError(t, s.RDMA.Distance.UnmarshalText([]byte(f[3])))
			if len(f) > 4 {
				s.RDMA.Subnet = f[4]
			}
		default:
			t.Fatalf("a site has no %q", key)
		}
	}
	testkit.NoError(t, s.Validate())
	return s
}

// bundle is 4x25: four links of 25 GB/s; 0 is none.
func bundle(t *testing.T, text string) links.Bundle {
	if text == "0" {
		return links.Bundle{}
	}
	n, each, _ := strings.Cut(text, "x")
	return links.Bundle{Links: count(t, n), Rate: links.Rate(count(t, n)) * rate(t, each)}
}

func rate(t *testing.T, text string) links.Rate { return links.Rate(count(t, text)) * links.Gigabyte }

func count(t *testing.T, text string) int {
	n, err := strconv.Atoi(text)
	testkit.NoError(t, err)
	return n
}
