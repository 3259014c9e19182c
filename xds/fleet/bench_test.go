package fleet

import (
	"fmt"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// largeState returns a State of n replicas that all report a skewed mix, and with withLinks their own links: nodes of
// eight GPUs, joined in pairs.
func largeState(b *testing.B, n int, withLinks bool) (*State, []loadreport.Report) {
	b.Helper()
	rules := Rules{Models: []Model{{
		Model: resources.Model{Name: "m", Context: 32768}, Edges: policies.BucketEdges(32768, 4),
		QoE: policytest.H200QoE(), Cost: policies.Cost{D0: 0.008, D1: 5e-5, D2: 6e-5, D3: 1e-9, D4: 6e-8, Kappa: 4},
	}}}
	if withLinks {
		rules.Models[0].TokenBytes, rules.Models[0].Links = 1e6, links.Rates{SameHost: 100 * links.Gigabyte, BetweenHosts: links.Gigabyte}
	}
	s := testkit.Must(NewState(rules))
	var list []policies.Replica
	var reports []loadreport.Report
	for i := range n {
		r := scenarioReplica(fmt.Sprintf("r%d", i))
		if withLinks {
			r.Host = fmt.Sprint("n", i/8)
		}
		list = append(list, r)
		report := loadreport.Report{Replica: r.ID, Model: "m", EngineReady: true, Load: policies.Load{Running: 20, Held: policies.Tokens(1000 * i), Iteration: 0.012}}
		report.Flow, report.Snapshot = mix("skewed")
		report.Flow.Seen = 1000
		if withLinks {
			k := i % 8
			report.Topology = &links.Topology{Known: true, GPU: &links.GPU{Index: k, Address: fmt.Sprint("g", k), Peers: []links.Peer{
				{Index: k ^ 1, Address: fmt.Sprint("g", k^1), NVLinks: links.Bundle{Links: 4, Rate: 1e11}, Asked: true, Read: true, NVLink: true},
			}}}
		}
		reports = append(reports, report)
	}
	settleState(s, start, Replicas{list})
	for _, r := range reports {
		settleState(s, start, Reported{r})
	}
	return s, reports
}

var sizes = []int{16, 1000, 10000}

// BenchmarkReport measures the time to apply one load report and to answer it.
func BenchmarkReport(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s, reports := largeState(b, n, false)
			i := 0
			for b.Loop() {
				s.Step(start, Reported{reports[i%n]})
				s.Reply(reports[i%n].Replica)
				i++
			}
		})
	}
}

// BenchmarkPeriod measures one planning period: health, weights, flows, partition, adoption. With links every replica
// reports its own, and those of one replica change in each period.
func BenchmarkPeriod(b *testing.B) {
	for _, withLinks := range []bool{false, true} {
		for _, n := range sizes {
			b.Run(fmt.Sprintf("%d/links=%v", n, withLinks), func(b *testing.B) {
				s, reports := largeState(b, n, withLinks)
				now := start
				for b.Loop() {
					b.StopTimer()
					now = now.Add(s.rules.Period)
					for _, r := range reports {
						s.registry.Get(r.Replica).ReportedAt = now
					}
					if withLinks {
						s.resetDistances()
					}
					b.StartTimer()
					settleState(s, now, Tick{})
				}
			})
		}
	}
}

// TestReportAllocations bounds the allocations per report, because a fleet of ten
// thousand replicas reports ten thousand times a second.
func TestReportAllocations(t *testing.T) {
	s := testState(t, PolicyDefault)
	r := loadreport.Report{Replica: "r0", Model: "m", EngineReady: true, Flow: policies.NewFlow([]policies.Tokens{0, 16, 32})}
	var ev Event = Reported{r}
	s.Step(start, ev)
	if n := testing.AllocsPerRun(100, func() { s.Step(start, ev) }); n > 0 {
		t.Errorf("%v allocations for a report that changes nothing", n)
	}
}
