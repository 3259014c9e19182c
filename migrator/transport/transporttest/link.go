package transporttest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// Link is a pair whose ends run. It ends with Stop, or with the test.
type Link struct {
	Pair
	// Migration is the name of the latest grant.
	Migration string

	t                      testing.TB
	grants                 int
	pullers                []transport.Puller
	stopSource, stopTarget func()
	stop                   func()
}

// Start fills the memories of a pair with different patterns, and runs both ends. It
// returns when the source exports.
func Start(t testing.TB, p Pair) *Link {
	t.Helper()
	p.Source.Fill(1)
	p.Target.Fill(2)
	l := &Link{Pair: p, t: t, stopSource: StartTransport(t, p.Source.Transport), stopTarget: StartTransport(t, p.Target.Transport)}
	l.stop = sync.OnceFunc(func() {
		for _, puller := range l.pullers {
			if err := puller.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
		l.stopSource()
		l.stopTarget()
		p.Source.Memory.Close()
		p.Target.Memory.Close()
	})
	t.Cleanup(l.stop)
	WaitForExport(t, p.Source.Transport, l.Grant())
	p.Source.Transport.Revoke(l.Migration)
	return l
}

// WaitForExport exports a grant as soon as the transport runs: only Export shows that.
func WaitForExport(t testing.TB, tr transport.Transport, g transport.Grant) (offer transport.Offer) {
	t.Helper()
	testkit.WaitForValue(t, "the source to export", func() (err error) {
		offer, err = tr.Export(g)
		return err
	}, func(err error) bool { return err == nil })
	return offer
}

// StartTransport runs a transport and returns a function that stops and joins it.
func StartTransport(t testing.TB, tr transport.Transport) func() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- tr.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("run: %v", err)
			}
		case <-time.After(patience):
			t.Error("Run did not return")
		}
	})
}

// Stop closes the pullers of Open, stops both ends and closes their memories. Further
// calls do nothing.
func (l *Link) Stop() { l.stop() }

// Grant returns a grant of another migration to Receiver.
func (l *Link) Grant() transport.Grant {
	l.grants++
	l.Migration = fmt.Sprintf("source-0/%d", l.grants)
	return transport.Grant{Migration: l.Migration, Receiver: Receiver, Deadline: time.Now().Add(time.Hour)}
}

// Export exports a grant, and announces all blocks for it.
func (l *Link) Export(g transport.Grant) transport.Offer {
	l.t.Helper()
	offer := l.ExportUnannounced(g)
	announceAll(l.Source, g.Migration)
	return offer
}

// announceAll announces every block of a source.
func announceAll(source End, migration string) {
	all := make([]uint32, source.Memory.Blocks)
	for i := range all {
		all[i] = uint32(i)
	}
	source.Transport.Announce(migration, all)
}

// ExportUnannounced exports a grant.
func (l *Link) ExportUnannounced(g transport.Grant) transport.Offer {
	l.t.Helper()
	offer, err := l.Source.Transport.Export(g)
	if err != nil {
		l.t.Fatalf("export: %v", err)
	}
	if offer.Transport != l.Source.Transport.Name() {
		l.t.Errorf("the offer is for transport %q, exported by %q", offer.Transport, l.Source.Transport.Name())
	}
	return offer
}

// Open opens a pull of another migration. Stop closes it.
func (l *Link) Open() transport.Puller {
	l.t.Helper()
	p, err := l.OpenOffer(Receiver, l.Export(l.Grant()))
	if err != nil {
		l.t.Fatalf("open: %v", err)
	}
	l.pullers = append(l.pullers, p)
	return p
}

// OpenOffer opens a pull of an offer. The caller closes the puller.
func (l *Link) OpenOffer(receiver policies.ReplicaID, offer transport.Offer) (transport.Puller, error) {
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	return l.Target.Transport.Open(ctx, receiver, offer)
}

// Pull pulls a plan.
func (l *Link) Pull(p transport.Puller, plan transport.Plan) (transport.Stats, error) {
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	return p.Pull(ctx, plan)
}

// RequirePull pulls, and compares the whole memory with a plain copy.
func (l *Link) RequirePull(puller transport.Puller, p transport.Plan) transport.Stats {
	l.t.Helper()
	want := plainCopy(l.Target.Read(), l.Pair, p)
	stats, err := l.Pull(puller, p)
	if err != nil {
		l.t.Errorf("pull of %d blocks: %v", len(p.Src), err)
		return stats
	}
	if !bytes.Equal(l.Target.Read(), want) {
		l.t.Errorf("pull of %d blocks: the memory differs from a plain copy", len(p.Src))
	}
	if bytes := int64(len(p.Src)) * l.Target.Memory.BlockBytes(); stats.Bytes != bytes || stats.Duration < 0 {
		l.t.Errorf("pull of %d blocks and %d bytes: %+v", len(p.Src), bytes, stats)
	}
	return stats
}

// plainCopy returns the target's memory after a plan: its present bytes, except for the
// plan's blocks. Every transport is compared with this plain copy.
func plainCopy(before []byte, pair Pair, p transport.Plan) []byte {
	want := &transport.Memory{Layout: pair.Target.Memory.Layout, Bytes: slices.Clone(before)}
	for i := range p.Src {
		for r := range want.Regions {
			copy(want.RegionBytes(p.Dst[i], r), pair.Source.Memory.RegionBytes(p.Src[i], r))
		}
	}
	return want.Bytes
}

// Plan returns a random plan of n blocks, each target block once: runs of neighbours, and
// single blocks.
func (l *Link) Plan(n int, seed uint64) transport.Plan {
	rng := rand.New(rand.NewPCG(seed, 7))
	to := rng.Perm(l.Target.Memory.Blocks)[:n]
	if rng.IntN(2) == 0 {
		slices.Sort(to)
	}
	next := 0
	return NewPlan(l.Source.Memory, n, func(i int) (int, int) {
		if next == l.Source.Memory.Blocks || rng.IntN(4) == 0 {
			next = rng.IntN(l.Source.Memory.Blocks)
		}
		next++
		return next - 1, to[i]
	})
}

// NewPlan returns a plan of n entries: blocks returns the source's and the target's block
// of entry i.
func NewPlan(source *transport.Memory, n int, blocks func(i int) (src, dst int)) transport.Plan {
	p := transport.Plan{}
	for i := range n {
		src, dst := blocks(i)
		p.Src, p.Dst = append(p.Src, uint32(src)), append(p.Dst, uint32(dst))
	}
	p.Sums = source.Sums(nil, p.Src)
	return p
}

// OrderedPlan returns a plan of n consecutive blocks, from and to these blocks.
func OrderedPlan(source *transport.Memory, from, to, n int) transport.Plan {
	return NewPlan(source, n, func(i int) (int, int) { return from + i, to + i })
}

// ShuffledPlan returns a plan of n blocks of pools of one layout, with no runs but by
// chance.
func ShuffledPlan(source *transport.Memory, n int) transport.Plan {
	rng := rand.New(rand.NewPCG(1, 2))
	from, to := rng.Perm(source.Blocks), rng.Perm(source.Blocks)
	return NewPlan(source, n, func(i int) (int, int) { return from[i], to[i] })
}
