package plugins_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/guesttest"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// border returns the view of a boundary between stages with n requests in total.
func border(requests int) policies.BoundaryView {
	b := policies.BoundaryView{Boundary: 5000, High: policies.Unbounded, Peers: 2, Successors: 3, QoE: policytest.H200QoE()}
	for i := range policies.Tokens(requests) / 2 {
		b.Local = append(b.Local, policies.Sequence{Input: i * 7 % 50, Length: i * 7919 % 5000})
		b.Next = append(b.Next, policies.Sequence{Input: i * 7 % 50, Length: 5000 + i*7919%9000})
	}
	return b
}

// BenchmarkRefineFuel measures the table from which the limits of refine are derived: ticks,
// memory and time by number of requests.
func BenchmarkRefineFuel(b *testing.B) {
	for _, name := range []string{"refine-weighted", "refine-paper"} {
		var c host.Config
		c.Limits[abi.Refine] = host.Limit{Fuel: 1 << 40, Wall: time.Minute, Pages: 1024, Frame: 4 << 20}
		g := guesttest.Start(b, guesttest.Load(b, guesttest.Build(b, name+".go"), c))
		for _, n := range []int{0, 100, 1000, 4000, 16_000, 32_000, 64_000, 128_000, 250_000} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				border, most := border(n), int64(0)
				for b.Loop() {
					if _, err := g.Refine(abi.Call{}, border); err != nil {
						b.Fatal(err)
					}
					most = max(most, g.Fuel())
				}
				now, _ := g.Memory()
				b.ReportMetric(float64(most), "ticks")
				b.ReportMetric(float64(now>>20), "MiB")
			})
		}
	}
}

// BenchmarkPartitionFuel measures the same table for partition, by replicas and buckets.
func BenchmarkPartitionFuel(b *testing.B) {
	edges := func(n int) (list []policies.Tokens) {
		for i := range n {
			list = append(list, policies.Tokens(i*131_072/n)+policies.Tokens(min(i, 1)))
		}
		return list
	}
	for _, name := range []string{"partition-exact", "partition-two-phase", "partition-recursion"} {
		g := guesttest.Start(b, guesttest.Load(b, guesttest.Build(b, name+".go"), host.Config{Limits: [abi.NumKinds]host.Limit{abi.Partition: {Fuel: 1 << 40, Wall: time.Minute}}}))
		for _, size := range [][2]int{{16, 18}, {64, 18}, {256, 18}, {1000, 18}, {10_000, 18}, {1000, 119}, {10_000, 119}} {
			if name == "partition-recursion" && size[0]*size[1] > 5000 {
				continue
			}
			b.Run(fmt.Sprintf("%s/%dx%d", name, size[0], size[1]), func(b *testing.B) {
				w, most := policytest.ChatWorkload(edges(size[1]), size[0], 0.5, 1), int64(0)
				for b.Loop() {
					if _, err := g.Partition(abi.Call{}, w); err != nil && err != policies.ErrInfeasible {
						b.Fatal(err)
					}
					most = max(most, g.Fuel())
				}
				now, _ := g.Memory()
				b.ReportMetric(float64(most), "ticks")
				b.ReportMetric(float64(now>>20), "MiB")
			})
		}
	}
}
