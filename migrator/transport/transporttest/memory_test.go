package transporttest_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// newPair returns two ends in a network of their own.
func newPair(t testing.TB, source, target transport.Layout, faults *transporttest.Faults) transporttest.Pair {
	t.Helper()
	network := &transporttest.Network{}
	end := func(name string, l transport.Layout) transporttest.End {
		m := transporttest.HeapMemory(l)
		tr := testkit.Must(transporttest.NewMemory(transporttest.MemoryConfig{Network: network, Name: name, Pool: transporttest.Pool{M: m}, Faults: faults}))
		return transporttest.End{Transport: tr, Memory: m}
	}
	return transporttest.Pair{Source: end("source", source), Target: end("target", target)}
}

func newEnds(t *testing.T, source, target transport.Layout) transporttest.Pair {
	return newPair(t, source, target, nil)
}

func TestConformance(t *testing.T) { transporttest.Run(t, newEnds) }

func TestAllocations(t *testing.T) { transporttest.RunAllocations(t, newEnds) }

var small = transport.Layout{Blocks: 8, Regions: []transport.Region{{Stride: 4, Bytes: 4}, {Offset: 32, Stride: 4, Bytes: 4}}}

// TestFaults opens a pull of four blocks whose grant ends in ten seconds, pulls, and pulls again: which fault
// happens, when, and how many blocks have arrived by then.
func TestFaults(t *testing.T) {
	for name, x := range map[string]struct {
		fault   transporttest.Fault
		opens   bool
		arrived int           // after the first pull
		took    time.Duration // to its end
		again   bool          // the second pull succeeds
	}{
		"none":                {opens: true, arrived: 4, again: true},
		"another call's":      {fault: transporttest.Fault{At: transporttest.AtPull, Kind: transporttest.Cut, Nth: 2}, opens: true, arrived: 4, again: true},
		"cut at once":         {fault: transporttest.Fault{At: transporttest.AtPull, Kind: transporttest.Cut}, opens: true},
		"cut after 3":         {fault: transporttest.Fault{At: transporttest.AtPull, Kind: transporttest.Cut, Block: 3}, opens: true, arrived: 3},
		"cut after all":       {fault: transporttest.Fault{At: transporttest.AtPull, Kind: transporttest.Cut, Block: 99}, opens: true, arrived: 4},
		"corrupt":             {fault: transporttest.Fault{At: transporttest.AtPull, Kind: transporttest.Corrupt, Block: 2}, opens: true, arrived: 3, again: true},
		"hang, until its end": {fault: transporttest.Fault{At: transporttest.AtPull, Kind: transporttest.Hang, Block: 1}, opens: true, arrived: 1, took: 10 * time.Second},
		"hang, until closed":  {fault: transporttest.Fault{At: transporttest.AtPull, Kind: transporttest.Hang, Block: 1}, opens: true, arrived: 1, took: time.Second},
		"hang, until cancel":  {fault: transporttest.Fault{At: transporttest.AtPull, Kind: transporttest.Hang, Block: 1}, opens: true, arrived: 1, took: 2 * time.Second},
		"refused":             {fault: transporttest.Fault{Kind: transporttest.Refuse}},
		"hang in the opening": {fault: transporttest.Fault{Kind: transporttest.Hang}, took: 5 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			faults := &transporttest.Faults{}
			l := transporttest.Start(t, newPair(t, small, small, faults))
			faults.Set(x.fault)
			g := l.Grant()
			g.Deadline = time.Now().Add(10 * time.Second)
			begun := time.Now()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p, err := l.Target.Transport.Open(ctx, transporttest.Receiver, l.Export(g))
			if (err == nil) != x.opens || errors.Is(err, transport.ErrRefused) != (x.fault.Kind == transporttest.Refuse) {
				t.Errorf("%s: open: %v", name, err)
			}
			if err != nil {
				if took := time.Since(begun); took != x.took {
					t.Errorf("%s: open took %v", name, took)
				}
				return
			}
			switch x.took {
			case time.Second:
				time.AfterFunc(x.took, func() { p.Close() })
			case 2 * time.Second:
				time.AfterFunc(x.took, cancel)
			}
			plan := transporttest.NewPlan(l.Source.Memory, 4, func(i int) (int, int) { return i, 7 - i })
			_, err = p.Pull(ctx, plan)
			took, arrived := time.Since(begun), 0
			for i, dst := range plan.Dst {
				if slices.Equal(l.Source.Memory.Sums(nil, plan.Src[i:i+1]), l.Target.Memory.Sums(nil, []uint32{dst})) {
					arrived++
				}
			}
			var corrupt *transport.CorruptError
			if errors.As(err, &corrupt) != (x.fault.Kind == transporttest.Corrupt) || (err == nil) != (x.again && corrupt == nil) || arrived != x.arrived || took != x.took {
				t.Errorf("%s: %d blocks in %v: %v", name, arrived, took, err)
			}
			if _, err := p.Pull(ctx, plan); (err == nil) != x.again {
				t.Errorf("%s: second pull: %v", name, err)
			}
			p.Close()
		})
	}
}
