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

var small = transport.Layout{Blocks: 8, Regions: []transport.Region{{Stride: 4, Bytes: 4}, {Offset: 32, Stride: 4, Bytes: 4}}}

// fixture is a running pair with a plan of four blocks, in a synctest bubble.
type fixture struct {
	*transporttest.Link
	faults *transporttest.Faults
	plan   transport.Plan
}

func inBubble(t *testing.T, test func(t *testing.T, s *fixture)) {
	synctest.Test(t, func(t *testing.T) {
		s := &fixture{faults: &transporttest.Faults{}}
		s.Link = transporttest.Start(t, newPair(t, small, small, s.faults))
		s.plan = transporttest.NewPlan(s.Source.Memory, 4, func(i int) (int, int) { return i, 7 - i })
		test(t, s)
	})
}

// open opens a pull whose grant ends in ten seconds.
func (s *fixture) open(ctx context.Context) (transport.Puller, error) {
	g := s.Grant()
	g.Deadline = time.Now().Add(10 * time.Second)
	return s.Target.Transport.Open(ctx, transporttest.Receiver, s.Export(g))
}

// arrived counts the plan's blocks that are in place.
func (s *fixture) arrived() int {
	n := 0
	for i, dst := range s.plan.Dst {
		if slices.Equal(s.Source.Memory.Sums(nil, s.plan.Src[i:i+1]), s.Target.Memory.Sums(nil, []uint32{dst})) {
			n++
		}
	}
	return n
}

func TestPullFaults(t *testing.T) {
	for _, c := range []struct {
		name    string
		fault   transporttest.Fault
		err     bool
		arrived int
		took    time.Duration
	}{
		{name: "none", arrived: 4},
		{name: "another call's", fault: transporttest.Fault{Kind: transporttest.Cut, Nth: 1}, arrived: 4},
		{name: "cut at once", fault: transporttest.Fault{Kind: transporttest.Cut}, err: true},
		{name: "cut after 3", fault: transporttest.Fault{Kind: transporttest.Cut, Block: 3}, err: true, arrived: 3},
		{name: "cut after all", fault: transporttest.Fault{Kind: transporttest.Cut, Block: 99}, err: true, arrived: 4},
		{name: "delay", fault: transporttest.Fault{Kind: transporttest.Delay, Block: 2, For: time.Second}, arrived: 4, took: time.Second},
		{name: "delay over the grant", fault: transporttest.Fault{Kind: transporttest.Delay, Block: 2, For: time.Minute}, err: true, arrived: 2, took: 10 * time.Second},
		{name: "hang", fault: transporttest.Fault{Kind: transporttest.Hang, Block: 1}, err: true, arrived: 1, took: 10 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *fixture) {
				p := testkit.Must(s.open(t.Context()))
				defer p.Close()
				c.fault.At = transporttest.AtPull
				s.faults.Set(c.fault)
				start := time.Now()
				if _, err := p.Pull(t.Context(), s.plan); (err != nil) != c.err {
					t.Errorf("pull: %v", err)
				}
				if took := time.Since(start); took != c.took || s.arrived() != c.arrived {
					t.Errorf("%d blocks in %v, want %d in %v", s.arrived(), took, c.arrived, c.took)
				}
			})
		})
	}
}

func TestCorruptBlockCanBePulledAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, s *fixture) {
		p := testkit.Must(s.open(t.Context()))
		defer p.Close()
		s.faults.Set(transporttest.Fault{At: transporttest.AtPull, Kind: transporttest.Corrupt, Block: 2})
		var corrupt *transport.CorruptError
		if _, err := p.Pull(t.Context(), s.plan); !errors.As(err, &corrupt) || !slices.Equal(corrupt.Blocks, []int{2}) || s.arrived() != 3 {
			t.Errorf("pull: %v, %d blocks arrived", err, s.arrived())
		}
		if _, err := p.Pull(t.Context(), s.plan); err != nil || s.arrived() != 4 {
			t.Errorf("second pull: %v, %d blocks arrived", err, s.arrived())
		}
	})
}

func TestOpenFaults(t *testing.T) {
	inBubble(t, func(t *testing.T, s *fixture) {
		s.faults.Set(transporttest.Fault{Kind: transporttest.Refuse}, transporttest.Fault{Nth: 1, Kind: transporttest.Hang}, transporttest.Fault{Nth: 2, Kind: transporttest.Hang},
			transporttest.Fault{Nth: 3, Kind: transporttest.Delay, For: time.Second})
		if _, err := s.open(t.Context()); !errors.Is(err, transport.ErrRefused) {
			t.Errorf("refused: %v", err)
		}
		if _, err := s.open(t.Context()); err == nil {
			t.Error("an Open that hangs succeeded")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.open(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an Open that hangs until its deadline: %v", err)
		}
		p := testkit.Must(s.open(t.Context()))
		p.Close()
	})
}

// TestHangEnds checks that a hanging pull ends with its context and with its puller.
func TestHangEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, s *fixture) {
		for _, end := range []string{"context", "close"} {
			s.faults.Set(transporttest.Fault{At: transporttest.AtPull, Kind: transporttest.Hang})
			p := testkit.Must(s.open(t.Context()))
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() {
				_, err := p.Pull(ctx, s.plan)
				ended <- err
			}()
			synctest.Wait()
			if end == "close" {
				p.Close()
			}
			cancel()
			if err := <-ended; err == nil {
				t.Errorf("%s: the pull succeeded", end)
			}
			p.Close()
		}
	})
}

func BenchmarkPull(b *testing.B) {
	l := transporttest.Start(b, newPair(b, small, small, nil))
	puller, plan := l.Open(), l.Plan(4, 1)
	b.ReportAllocs()
	for b.Loop() {
		testkit.Must(puller.Pull(b.Context(), plan))
	}
}
