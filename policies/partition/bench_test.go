package partition_test

import (
	"fmt"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/policytest"
)

// grains are the numbers of buckets per octave to plan with, for 128K tokens of
// context.
var grains = []struct {
	name      string
	perOctave int
}{{"octaves", 1}, {"eighths", 8}}

func BenchmarkExact(b *testing.B) {
	for _, free := range []bool{false, true} {
		name := "priced" // migrations between stages have their real cost
		if free {
			name = "free" // migrations between stages cost nothing: the stage limit binds
		}
		for _, g := range grains {
			for _, replicas := range []int{16, 64, 256, 1024, 10000} {
				b.Run(fmt.Sprintf("%s/%s/replicas=%d", name, g.name, replicas), func(b *testing.B) {
					w := policytest.ChatWorkload(policies.BucketEdges(131072, g.perOctave), replicas, 0.6, 1)
					if free {
						w.Transfer = policies.Transfer{}
					}
					bench(b, partition.Exact{}, w)
				})
			}
		}
	}
}

// BenchmarkFewest is the fleet's default, which proves by further searches that fewer stages cost more
// than its slack.
func BenchmarkFewest(b *testing.B) {
	for _, g := range grains {
		for _, replicas := range []int{16, 64, 256, 1024, 10000} {
			b.Run(fmt.Sprintf("%s/replicas=%d", g.name, replicas), func(b *testing.B) {
				w := policytest.ChatWorkload(policies.BucketEdges(131072, g.perOctave), replicas, 0.6, 1)
				bench(b, partition.Exact{Slack: partition.DefaultSlack}, w)
			})
		}
	}
}

func BenchmarkRecursion(b *testing.B) { benchPaper(b, partition.Recursion{}) }

func BenchmarkTwoPhase(b *testing.B) { benchPaper(b, partition.TwoPhase{}) }

func benchPaper(b *testing.B, p policies.Partitioner) {
	for _, g := range grains {
		for _, replicas := range []int{16, 64} {
			b.Run(fmt.Sprintf("%s/replicas=%d", g.name, replicas), func(b *testing.B) {
				bench(b, p, policytest.ChatWorkload(policies.BucketEdges(131072, g.perOctave), replicas, 0.6, 1))
			})
		}
	}
}

func bench(b *testing.B, p policies.Partitioner, w policies.Workload) {
	var out policies.Partition
	for b.Loop() {
		var err error
		if out, err = p.Partition(w); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(out.Counts)), "stages")
	b.ReportMetric(out.Cost/out.OneStage, "cost/one-stage")
}
