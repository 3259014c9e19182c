package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/tcp"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// fatalCodes end a context: a fault of a kernel, a memory error, and a GPU that has
// fallen off the bus.
var fatalCodes = []int{stickyCode, 214, 999}

// transferLoop transfers blocks on one GPU repeatedly.
type transferLoop struct {
	*transporttest.Link
	t    *testing.T
	c    *fake.Control
	g    *GPU
	plan transport.Plan
}

// dense has no gaps, so that the copy engines copy runs.
var dense = transport.Layout{Blocks: 40, Regions: []transport.Region{{Stride: 32 << 10, Bytes: 32 << 10}}}

// runAndSingles is the places of the entries of a plan with a run, and single blocks.
func runAndSingles(i int) (src, dst int) {
	if i < 20 {
		return i, i + 10
	}
	return 59 - i, i - 20
}

func newTransferLoop(t *testing.T) *transferLoop {
	s := &transferLoop{t: t, c: newControl(t), g: newGPU(t)}
	s.Link = transporttest.Start(t, newPair(t, s.g, dense, dense))
	s.plan = transporttest.NewPlan(s.Source.Memory, 30, runAndSingles)
	return s
}

// transfer is one transfer, from the source's checksums to the close of the puller.
func (s *transferLoop) transfer() error {
	sums, err := transport.ChecksumBlocks(transporttest.Pool{M: s.Source.Memory}, s.plan.Src)
	if err != nil {
		return err
	}
	if !slices.Equal(sums, s.plan.Sums) {
		s.t.Error("the source's blocks changed")
	}
	p, err := s.OpenOffer(transporttest.Receiver, s.Export(s.Grant()))
	if err != nil {
		return err
	}
	_, err = s.Pull(p, s.plan)
	return errors.Join(err, p.Close())
}

// requireTransfer transfers, and compares the blocks.
func (s *transferLoop) requireTransfer(what string) {
	s.t.Helper()
	if err := s.transfer(); err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
	if got, err := transport.ChecksumBlocks(transporttest.Pool{M: s.Target.Memory}, s.plan.Dst); err != nil || !slices.Equal(got, s.plan.Sums) {
		s.t.Errorf("%s: the blocks differ: %v", what, err)
	}
}

// closeContext closes the GPU's context, as after a long time without a pull.
func (s *transferLoop) closeContext() {
	if h := s.g.current; h != nil {
		if err := s.g.closeContext(h, nil); err != nil {
			s.t.Error(err)
		}
	}
}

// endPause ends the pause after failures.
func (s *transferLoop) endPause() {
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	if !s.g.failures.until.IsZero() {
		s.g.failures.until = time.Unix(1, 0)
	}
}

// liveHandles returns the number of open handles when nothing is in progress.
func (s *transferLoop) liveHandles() int {
	s.g.unmapIdle(time.Now().Add(time.Hour))
	return s.c.Live("")
}

// TestEveryStepFails makes each call of a transfer fail, once at each of its places, with a transient code, and with
// those that end the GPU's context: the transfer fails and names the call, the context is made again if need be, and
// the next transfer succeeds and leaves no more handles than any other.
func TestEveryStepFails(t *testing.T) {
	s := newTransferLoop(t)
	s.requireTransfer("the first transfer")
	s.closeContext()
	s.requireTransfer("a transfer on a new context")
	live := s.liveHandles()
	for _, state := range []string{"warm", "cold"} {
		for _, call := range transferCalls {
			quiet := slices.Contains(closeCalls, call) // its error may not be reported
			for _, code := range append(fatalCodes, transientCode) {
				if quiet && code == transientCode {
					continue // what cannot be closed stays
				}
				for nth := 1; ; nth++ {
					name := fmt.Sprintf("%s, %s %d, code %d", state, call, nth, code)
					if state == "cold" {
						s.closeContext()
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
					s.endPause()
					s.requireTransfer(name + ", and then")
					if n := s.c.Live("contexts"); n != 1 {
						t.Errorf("%s: %d contexts", name, n)
					}
					if n := s.liveHandles(); n != live {
						t.Errorf("%s: %d handles are open, %d were before", name, n, live)
					}
				}
			}
		}
	}
}

// TestGPUDown covers a GPU that stays down: nothing waits for it, it is retried at
// intervals only, all transports that need it report it, and it is used again when it is
// back.
func TestGPUDown(t *testing.T) {
	s := newTransferLoop(t)
	s.requireTransfer("the first transfer")
	if err := s.g.Err(); err != nil {
		t.Errorf("Err of a working GPU: %v", err)
	}
	byHost := testkit.Must(tcp.New(tcp.Config{Pool: transporttest.Pool{M: s.Target.Memory}}))
	all := []transport.Transport{s.Target.Transport, byHost}
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
			t.Fatal("a transfer on a dead GPU succeeded")
		}
	}
	if err := s.g.Err(); err == nil || !strings.Contains(err.Error(), "gpu 0 is down: cuDevicePrimaryCtxRetain: CUDA_ERROR_DEVICE_UNAVAILABLE (46)") {
		t.Errorf("%v", err)
	}
	// Once immediately, and again only if the machine took more than a second.
	if n := s.c.Calls("cuDevicePrimaryCtxRetain") - retained; n > 6 {
		t.Errorf("a dead GPU was opened %d times in 300 attempts", n)
	}
	s.c.Clear()
	s.endPause()
	for _, tr := range all {
		if err := tr.Probe(t.Context()); err != nil {
			t.Errorf("transport %s after recovery: %v", tr.Name(), err)
		}
	}
	if err := s.g.Err(); err != nil {
		t.Errorf("Err after recovery: %v", err)
	}
	s.requireTransfer("a transfer after recovery")

	s.g.MarkUnhealthy(errors.New("Xid 79"))
	for _, tr := range all {
		if err := tr.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "gpu 0 is down: Xid 79") {
			t.Errorf("transport %s of an unhealthy GPU: %v", tr.Name(), err)
		}
	}
	s.g.MarkUnhealthy(nil)
	for _, tr := range all {
		if err := tr.Probe(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestHungDriver closes a context while a call in it does not return: Err and MarkUnhealthy, which
// are called where nothing may wait, return at once.
func TestHungDriver(t *testing.T) {
	g := newGPU(t)
	h := testkit.Must(g.currentContext())
	started, hung, closed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_ = g.withContext(h, func(*gpuContext) error {
			close(started)
			<-hung
			return nil
		})
	}()
	<-started
	go func() { closed <- g.closeContext(h, errors.New("a failure")) }()
	for h.closeMu.TryRLock() { // until closeContext waits for the call
		h.closeMu.RUnlock()
		runtime.Gosched()
	}
	answered := make(chan error, 1)
	go func() {
		if err := g.Err(); err != nil {
			t.Errorf("Err after one failure: %v", err)
		}
		g.MarkUnhealthy(errors.New("Xid 79"))
		answered <- g.Err()
	}()
	select {
	case err := <-answered:
		if err == nil || !strings.Contains(err.Error(), "Xid 79") {
			t.Errorf("Err: %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("MarkUnhealthy and Err wait for the driver")
	}
	close(hung)
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// TestBatchCallMismatch covers a driver whose batch call has another meaning: the copy
// engines get one call per piece then, and the transfer succeeds.
func TestBatchCallMismatch(t *testing.T) {
	s := newTransferLoop(t)
	s.requireTransfer("the first transfer")
	for _, code := range []int{1, 801} {
		s.closeContext()
		s.c.Fail("cuMemcpyBatchAsync_v2", 1, code)
		batches, copies := s.c.Calls("cuMemcpyBatchAsync_v2"), s.c.Calls("cuMemcpyDtoDAsync_v2")
		s.requireTransfer("a transfer with another batch call")
		s.requireTransfer("the next transfer")
		if b, c := s.c.Calls("cuMemcpyBatchAsync_v2")-batches, s.c.Calls("cuMemcpyDtoDAsync_v2")-copies; b != 1 || c == 0 {
			t.Errorf("code %d: %d batches and %d copies", code, b, c)
		}
	}
}

// TestClosesAreRetried checks that a close which fails is retried later, by unmapIdle or
// on the next context.
func TestClosesAreRetried(t *testing.T) {
	s := newTransferLoop(t)
	s.requireTransfer("the first transfer")
	live := s.liveHandles()
	for _, call := range []string{"cuMemUnmap", "cuMemAddressFree"} {
		for _, code := range []int{transientCode, stickyCode} {
			s.requireTransfer("a transfer")
			s.c.Fail(call, 1, code)
			s.g.unmapIdle(time.Now().Add(time.Hour))
			s.requireTransfer("the next transfer")
			if n := s.liveHandles(); n != live {
				t.Errorf("%s, code %d: %d handles are alive, %d were", call, code, n, live)
			}
		}
	}
}

// TestFailurePauses checks that the pauses double, and that one failure after some work
// costs none.
func TestFailurePauses(t *testing.T) {
	now := time.Unix(1000, 0)
	var f failures
	f.record(now, 1)
	if now.Before(f.until) || !f.until.IsZero() {
		t.Errorf("the first failure costs a pause until %v", f.until)
	}
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		if f.record(now, 1); f.until.Sub(now) != want*time.Second {
			t.Errorf("failure %d costs a pause of %v", i+2, f.until.Sub(now))
		}
	}
	f = failures{}
	if f.record(now, 0); f.until.Sub(now) != time.Second {
		t.Errorf("a context that cannot be made costs a pause of %v", f.until.Sub(now))
	}
}
