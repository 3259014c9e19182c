// Command nvlink is a partitioner of one's own, in Go, which prefers neighbours on
// one machine: where a stage hands its grown requests over inside an NVLink domain,
// they arrive many times faster. Natively it shows how it differs from the best
// partition that takes every hand-over for a near one:
//
//	go run ./examples/nvlink
//
// and this makes the module that a fleet can run:
//
//	cascade policy test --build examples/nvlink
//
// A policies.Workload says how many replicas there are, not where, and what a
// hand-over costs if everybody's nearest neighbour is in the next stage. The control
// plane prices a proposal by who is then in its stages (policies/links), which is more;
// the partition that is the best by then has to be proposed first. How many replicas
// share a machine, and how much slower a hand-over to another one is, comes by
// configuration, "node 8" and "slower 10". Stages are spread over all machines
// (policies/adoption), and sellers prefer buyers on their own one: a hand-over stays there
// if the next stage has a replica on it.
package main

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	exact "github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/wasm/guest/configure"
	"github.com/cascadeinfer/cascade/wasm/guest/partition"
)

func init() {
	p := &nvlink{node: 8, slower: 10}
	configure.Register(p)
	partition.Register(p)
}

// rounds bounds how often the best partition is improved: a call must end.
const rounds = 32

// nvlink begins with the partitions that would be best if every hand-over were as
// fast as inside a machine, as slow as between two, or in between. From each it
// moves replicas between neighbouring stages for as long as the hand-overs that
// become local outweigh what the stages lose; the best of all is its proposal.
type nvlink struct {
	node   int // replicas per machine
	slower int // how many times slower a hand-over is between two
}

var _ policies.Partitioner = (*nvlink)(nil)

// Configure reads "node" and "slower".
func (p *nvlink) Configure(config []byte) error {
	return configure.ReadSettings(config,
		configure.Field{Name: "node", Set: func(v int64) { p.node = int(v) }, Low: 1, High: 1024},
		configure.Field{Name: "slower", Set: func(v int64) { p.slower = int(v) }, Low: 1, High: 1000})
}

// Partition implements policies.Partitioner.
func (p *nvlink) Partition(w policies.Workload) (policies.Partition, error) {
	best, err := exact.Exact{}.Partition(w)
	if err != nil {
		return best, err
	}
	best, least := p.improve(w, best)
	for share := 1; share <= 4; share++ { // of hand-overs between machines, in quarters
		scale := 1 + float64(share)/4*float64(p.slower-1)
		guess := w
		guess.Transfer.Base *= scale
		guess.Transfer.PerToken *= scale
		start, err := exact.Exact{}.Partition(guess)
		if err != nil {
			continue
		}
		if start, err = (exact.Exact{}).Price(w, start.Cuts, start.Counts); err != nil {
			continue
		}
		if d, total := p.improve(w, start); total < least {
			best, least = d, total
		}
	}
	return best, nil
}

// improve moves replicas between neighbouring stages while that pays, and returns
// what it found, with its cost and what is lost.
func (p *nvlink) improve(w policies.Workload, best policies.Partition) (policies.Partition, float64) {
	least := best.Cost + p.lost(w, best)
	for range rounds {
		from := best
		for i := range from.Counts {
			for _, k := range [...]int{i - 1, i + 1} {
				if k < 0 || k >= len(from.Counts) {
					continue
				}
				// Up to a whole machine at once: what pays may lie behind
				// partitions that do not.
				for n := 1; n <= p.node && n < from.Counts[i]; n++ {
					counts := slices.Clone(from.Counts)
					counts[i] -= n
					counts[k] += n
					next, err := exact.Exact{}.Price(w, from.Cuts, counts)
					if err != nil {
						break // the stage is too small, and gets smaller
					}
					if total := next.Cost + p.lost(w, next); total < least {
						best, least = next, total
					}
				}
			}
		}
		if slices.Equal(best.Counts, from.Counts) {
			break
		}
	}
	return best, least
}

// machines is how many there are.
func (p *nvlink) machines(w policies.Workload) int { return (w.Replicas + p.node - 1) / p.node }

// lost is how many requests more are on their way from stage to stage because some
// hand-overs leave a machine; the unit is that of the partition's cost, which prices
// each like one that stays.
func (p *nvlink) lost(w policies.Workload, d policies.Partition) float64 {
	sum, at := 0.0, 0
	for i, cut := range d.Cuts {
		crossings := w.Flow.Crossings[policies.BucketOf(w.Flow.Edges, cut)]
		delay := w.Transfer.Base + float64(float64(cut)*w.Transfer.PerToken)
		leave := 1 - local(p.machines(w), at, d.Counts[i], d.Counts[i+1])
		sum += float64(crossings * delay * leave)
		at += d.Counts[i]
	}
	return sum * float64(p.slower-1)
}

// local is the share of those of the from replicas that begin with number first
// that have one of the to replicas after them on their machine: number k is on
// machine k mod machines.
func local(machines, first, from, to int) float64 {
	if machines < 1 || to >= machines {
		return 1 // the next stage is on all of them
	}
	near := 0
	for a := first; a < first+from; a++ {
		// How far behind the next stage's begin the first one on a's machine is.
		behind := ((a-first-from)%machines + machines) % machines
		if behind < to {
			near++
		}
	}
	return float64(near) / float64(from)
}
