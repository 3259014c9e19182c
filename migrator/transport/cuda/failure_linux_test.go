package cuda

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/tcp"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// fatal are the codes that end a context, as they come from a kernel's fault, from
// memory, and from a GPU that has fallen off the bus.
var fatal = []int{forGood, 214, 999}

// course is moves on one GPU, again and again.
type course struct {
	t    *testing.T
	c    *fake.Control
	g    *GPU
	pair transporttest.Pair
	open func() (transport.Puller, error)
	plan transport.Plan
}

func newCourse(t *testing.T) *course {
	s := &course{t: t, c: control(t), g: gpu(t)}
	dense := transport.Layout{Blocks: 40, Regions: []transport.Region{{Stride: 32 << 10, Bytes: 32 << 10}}}
	dir := short(t)
	s.pair = transporttest.Pair{Source: endOn(t, s.g, dir, dense), Target: endOn(t, s.g, dir, dense)}
	s.open = moving(t, s.pair)
	pattern(s.pair.Source.Memory.Bytes)
	s.pair.Source.Mirror.Store()
	for i := range 20 { // a run, and some that are none
		s.plan.Src, s.plan.Dst = append(s.plan.Src, uint32(i)), append(s.plan.Dst, uint32(i+10))
	}
	for i := range 10 {
		s.plan.Src, s.plan.Dst = append(s.plan.Src, uint32(39-i)), append(s.plan.Dst, uint32(i))
	}
	s.plan.Sums = s.pair.Source.Memory.Sums(nil, s.plan.Src)
	return s
}

// transfer is one move, from the source's sums to the target's end of it.
func (s *course) transfer() error {
	sums, err := transport.ChecksumBlocks(transporttest.Pool{M: s.pair.Source.Memory}, s.plan.Src)
	if err != nil {
		return err
	}
	if !slices.Equal(sums, s.plan.Sums) {
		s.t.Error("the source's blocks have changed")
	}
	p, err := s.open()
	if err != nil {
		return err
	}
	_, err = p.Pull(s.t.Context(), s.plan)
	return errors.Join(err, p.Close())
}

// good is a move that must go well, and what it brings.
func (s *course) good(what string) {
	s.t.Helper()
	if err := s.transfer(); err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
	if got, err := transport.ChecksumBlocks(transporttest.Pool{M: s.pair.Target.Memory}, s.plan.Dst); err != nil || !slices.Equal(got, s.plan.Sums) {
		s.t.Errorf("%s: the blocks differ: %v", what, err)
	}
}

// cold ends the GPU's context, as after a long time without a move.
func (s *course) cold() {
	if h := s.g.current; h != nil {
		if err := s.g.closeContext(h, nil); err != nil {
			s.t.Error(err)
		}
	}
}

// later has the pause after some faults be over.
func (s *course) later() {
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	if !s.g.failures.until.IsZero() {
		s.g.failures.until = time.Unix(1, 0)
	}
}

// live is what is alive when nothing is under way.
func (s *course) live() int {
	s.g.unmapIdle(time.Now().Add(time.Hour))
	return s.c.Live("")
}

// TestStickyAtEveryStep has each call that a move makes end the GPU's context, once at
// each of its places: the move fails and says by what, the context is made anew, and
// the next move goes well and leaves as much behind as any.
func TestStickyAtEveryStep(t *testing.T) {
	s := newCourse(t)
	s.good("the first move")
	s.cold()
	s.good("a move on a new context")
	live := s.live()
	for _, state := range []string{"warm", "cold"} {
		for _, call := range used {
			if slices.Contains([]string{"cuMemGetAllocationGranularity", "cuMemCreate", "cuMemExportToShareableHandle"}, call) {
				continue // of a pool's making
			}
			quiet := slices.Contains(atTheEnd, call) // nobody may be left who could be told
			for _, code := range fatal {
				for nth := 1; ; nth++ {
					name := fmt.Sprintf("%s, %s %d, code %d", state, call, nth, code)
					if state == "cold" {
						s.cold()
					}
					before := s.c.Calls(call)
					s.c.Fail(call, nth, code)
					err := s.transfer()
					reached := s.c.Calls(call)-before >= nth
					s.c.Clear()
					if !reached {
						break
					}
					if err == nil && !quiet {
						t.Errorf("%s: no error", name)
					}
					if err != nil && (!strings.Contains(err.Error(), call+": CUDA_ERROR") || !strings.Contains(err.Error(), fmt.Sprintf("(%d)", code))) {
						t.Errorf("%s: %v", name, err)
					}
					s.later()
					s.good(name + ", and then")
					if n := s.c.Live("contexts"); n != 1 {
						t.Errorf("%s: %d contexts", name, n)
					}
					if n := s.live(); n != live {
						t.Errorf("%s: %d handles are alive, %d were", name, n, live)
					}
				}
			}
		}
	}
}

// TestDown has a GPU that stays dead: nobody waits for it, it is tried now and then and
// no more, all who need it say so, and it is used again when it is back.
func TestDown(t *testing.T) {
	s := newCourse(t)
	s.good("the first move")
	if err := s.g.Err(); err != nil {
		t.Errorf("a GPU that works: %v", err)
	}
	byHost, err := tcp.New(tcp.Config{Pool: transporttest.Pool{M: s.pair.Target.Memory}})
	if err != nil {
		t.Fatal(err)
	}
	all := []transport.Transport{s.pair.Target.Transport, byHost}
	s.c.Fail("cuEventQuery", 1, 719)
	s.c.Fail("cuDevicePrimaryCtxRetain", -1, 46)
	if err := s.transfer(); !cuda.Sticky(err) {
		t.Fatalf("%v", err)
	}
	retained := s.c.Calls("cuDevicePrimaryCtxRetain")
	for range 100 {
		for _, tr := range all {
			var down *DownError
			if err := tr.Probe(t.Context()); !errors.As(err, &down) || down.GPU != 0 || !cuda.HasCode(err, 46) {
				t.Fatalf("transport %s: %v", tr.Name(), err)
			}
		}
		if err := s.transfer(); err == nil {
			t.Fatal("a move on a dead GPU")
		}
	}
	if err := s.g.Err(); err == nil || !strings.Contains(err.Error(), "gpu 0 is down: cuDevicePrimaryCtxRetain: CUDA_ERROR_DEVICE_UNAVAILABLE (46)") {
		t.Errorf("%v", err)
	}
	// Once at once, and once more where the machine took more than a second.
	if n := s.c.Calls("cuDevicePrimaryCtxRetain") - retained; n > 6 {
		t.Errorf("a dead GPU was opened %d times in 300 attempts to use it", n)
	}
	s.c.Clear()
	s.later()
	for _, tr := range all {
		if err := tr.Probe(t.Context()); err != nil {
			t.Errorf("transport %s, of a GPU that is back: %v", tr.Name(), err)
		}
	}
	if err := s.g.Err(); err != nil {
		t.Errorf("a GPU that is back: %v", err)
	}
	s.good("a move on a GPU that is back")

	s.g.MarkUnhealthy(errors.New("Xid 79"))
	for _, tr := range all {
		if err := tr.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "gpu 0 is down: Xid 79") {
			t.Errorf("transport %s, of a GPU that is not to be trusted: %v", tr.Name(), err)
		}
	}
	s.g.MarkUnhealthy(nil)
	for _, tr := range all {
		if err := tr.Probe(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestBatchIsAnother has a driver whose batch call takes something else than it did: the
// copy engines get one call for each piece then, and the move goes well.
func TestBatchIsAnother(t *testing.T) {
	s := newCourse(t)
	s.good("the first move")
	for _, code := range []int{1, 801} {
		s.cold()
		s.c.Fail("cuMemcpyBatchAsync_v2", 1, code)
		batches, copies := s.c.Calls("cuMemcpyBatchAsync_v2"), s.c.Calls("cuMemcpyDtoDAsync_v2")
		s.good("a move by another batch call")
		s.good("the next move")
		if b, c := s.c.Calls("cuMemcpyBatchAsync_v2")-batches, s.c.Calls("cuMemcpyDtoDAsync_v2")-copies; b != 1 || c == 0 {
			t.Errorf("code %d: %d batches and %d copies", code, b, c)
		}
	}
}

// TestUnshut has what cannot be closed at first be closed later: with the next look, or
// on the next context.
func TestUnshut(t *testing.T) {
	s := newCourse(t)
	s.good("the first move")
	live := s.live()
	for _, call := range []string{"cuMemUnmap", "cuMemAddressFree"} {
		for _, code := range []int{passing, forGood} {
			s.good("a move")
			s.c.Fail(call, 1, code)
			s.g.unmapIdle(time.Now().Add(time.Hour))
			s.good("the next move")
			if n := s.live(); n != live {
				t.Errorf("%s, code %d: %d handles are alive, %d were", call, code, n, live)
			}
		}
	}
}

// The pauses double, and one fault after some work costs none.
func TestFaults(t *testing.T) {
	now := time.Unix(1000, 0)
	var f failures
	f.record(errContextClosed, now, 1)
	if now.Before(f.until) || !f.until.IsZero() {
		t.Errorf("the first fault costs a pause until %v", f.until)
	}
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		if f.record(errContextClosed, now, 1); f.until.Sub(now) != want*time.Second {
			t.Errorf("fault %d costs %v", i+2, f.until.Sub(now))
		}
	}
	f = failures{}
	if f.record(errContextClosed, now, 0); f.until.Sub(now) != time.Second {
		t.Errorf("a context that cannot be made costs %v", f.until.Sub(now))
	}
}
