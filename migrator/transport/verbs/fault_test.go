package verbs

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// patience bounds waits for what should end by itself.
const patience = 60 * time.Second

// reportRow prints a figure for "make rdma-check".
func reportRow(t testing.TB, what, value string) {
	t.Helper()
	fmt.Printf("\nrdma-check: verbs | %s | %s\n", what, value)
}

// layout returns the layout of the fault tests' pools: two regions per block, apart from
// each other.
func layout(blocks int, bytes int64) transport.Layout {
	return transport.Layout{Blocks: blocks, Regions: []transport.Region{{Stride: bytes + 64, Bytes: bytes}, {Offset: int64(blocks) * (bytes + 64), Stride: 2 * bytes, Bytes: bytes / 2}}}
}

// TestManyTransfers pulls random plans from one of two layouts into the other, and
// compares the whole memory with a plain copy each time.
func TestManyTransfers(t *testing.T) {
	requireNothingOpen(t)
	rounds := 100
	if real() {
		rounds = 1000
	}
	packed := transport.Layout{Blocks: 32, Regions: []transport.Region{{Stride: 2048, Bytes: 2048}, {Offset: 32 * 2048, Stride: 1024, Bytes: 1024}}}
	shapes := []transport.Layout{packed, layout(24, 2048)}
	transfers, blocks, total := 0, 0, time.Duration(0)
	for i := 0; transfers < rounds; i++ {
		l := start(t, shapes[i%2], shapes[i/2%2])
		puller := l.Open()
		for range 50 {
			n := 1 + transfers%24
			stats := l.RequirePull(puller, l.Plan(n, uint64(transfers)))
			transfers, blocks, total = transfers+1, blocks+n, total+stats.Duration
		}
		l.Stop()
	}
	reportRow(t, "verified transfers", fmt.Sprintf("%d of %d, %d blocks, %.0f MB/s (of an emulated machine)", transfers, transfers, blocks, float64(blocks)*3072/total.Seconds()/1e6))
}

// TestFenceIsQuick measures the fences of a pair at work, at the source and at the
// receiver. That they are fences is part of TestConformance.
func TestFenceIsQuick(t *testing.T) {
	requireNothingOpen(t)
	l := start(t, layout(200, 4096), layout(200, 4096))
	plan := l.Plan(200, 1)
	measure := func(fence func(p *puller) error) (took []time.Duration) {
		for range 12 {
			p := l.Open().(*puller)
			first, ended := make(chan struct{}), make(chan error, 1)
			go func() {
				_, err := l.Pull(p, plan)
				for close(first); err == nil; {
					_, err = l.Pull(p, plan)
				}
				ended <- err
			}()
			<-first
			start := time.Now()
			err := fence(p)
			took = append(took, time.Since(start))
			if err != nil {
				t.Error(err)
			}
			<-ended
		}
		return took
	}
	reportTimes(t, "fence: Revoke while a receiver pulls", measure(func(*puller) error {
		l.Source.Transport.Revoke(l.Migration)
		return nil
	}), 10*time.Millisecond)
	reportTimes(t, "fence and release: Close of a receiver at work", measure(func(p *puller) error {
		return errors.Join(p.pair.MoveToError(), p.Close())
	}), 0)
}

// reportTimes reports times, and fails if the worst exceeds the bound on a real device.
func reportTimes(t *testing.T, what string, took []time.Duration, bound time.Duration) {
	t.Helper()
	slices.Sort(took)
	median, worst := took[len(took)/2], took[len(took)-1]
	value := fmt.Sprintf("median %.2f ms, worst %.2f ms of %d", median.Seconds()*1e3, worst.Seconds()*1e3, len(took))
	if bound > 0 {
		value += fmt.Sprintf(" (want ≤ %v)", bound)
	}
	reportRow(t, what, value)
	if real() && bound > 0 && worst > bound {
		t.Errorf("%s: %s", what, value)
	}
}

// TestDeadPeer kills the process of a source while a receiver pulls from it.
func TestDeadPeer(t *testing.T) {
	requireNothingOpen(t)
	path := ""
	if !real() { // a fake of its own, which reaches other processes
		path = fake.Copy(t, fake.Verbs(t))
		t.Setenv("FAKE_VERBS_FABRIC", filepath.Join(t.TempDir(), "fabric"))
	}
	lib := testkit.Must(verbs.Open(path))
	var took []time.Duration
	for range 5 {
		took = append(took, timeToNoticeKill(t, lib, cmp.Or(path, verbs.Soname)))
	}
	reportTimes(t, "dead peer: process killed", took, 300*time.Millisecond)
	if n := lib.OpenResources(); n != (verbs.Resources{}) {
		t.Errorf("%+v are still open", n)
	}
}

// timeToNoticeKill returns how long a pull continues after the process of its source was
// killed.
func timeToNoticeKill(t *testing.T, lib *verbs.Library, path string) time.Duration {
	offer, _, kill := transporttest.StartSource(t, path)
	m := transporttest.HeapMemory(layout(64, 4096))
	defer m.Close()
	target := newTransportOn(t, lib, m)
	defer transporttest.StartTransport(t, target)()
	puller := testkit.Must(target.Open(t.Context(), transporttest.Receiver, offer))
	defer puller.Close()
	plan := transporttest.OrderedPlan(transporttest.HeapMemory(m.Layout), 0, 0, 64)
	_, err := puller.Pull(t.Context(), plan)
	testkit.NoError(t, err)
	start := time.Now()
	kill()
	for err == nil {
		_, err = puller.Pull(t.Context(), plan)
	}
	return time.Since(start)
}

// TestSilentPeer removes the source's pair silently, as a power loss does: only the
// timeouts of packets are left to notice it.
func TestSilentPeer(t *testing.T) {
	requireNothingOpen(t)
	var took []time.Duration
	for range 5 {
		l := start(t, layout(64, 4096), layout(64, 4096))
		p, work := l.Open().(*puller), l.Plan(64, 1)
		testkit.Must(p.Pull(t.Context(), work))
		// From now on the receiver's pair reads from a pair that never existed.
		gone := testkit.Must(p.nic.device.NewQueuePair(p.queue, depth*len(p.work), p.pieces))
		own := p.state.localEndpoint(p.nic.device, gone)
		path := testkit.Must(own.pathTo(p.nic, p.state, own))
		path.Pair = 0xfffff0
		testkit.NoError(t, errors.Join(gone.Init(1, 0), gone.ReadyToReceive(path), gone.ReadyToSend(path), p.pair.Close()))
		p.pair = gone
		start := time.Now()
		_, err := p.Pull(t.Context(), work)
		took = append(took, time.Since(start))
		var failed *verbs.CompletionError
		if !errors.As(err, &failed) || failed.Status != verbs.RetryExceeded {
			t.Errorf("a pull from a lost peer: %v", err)
		}
		l.Stop()
	}
	reportTimes(t, "dead peer: no answer", took, 300*time.Millisecond)
}

// transfer is one whole transfer over a library, from making its ends to closing them.
// The ends log to log. It returns all errors.
func transfer(t *testing.T, lib *verbs.Library, log io.Writer) error {
	end := transporttest.End{Memory: transporttest.HeapMemory(layout(8, 512))}
	other := transporttest.End{Memory: transporttest.HeapMemory(layout(8, 512))}
	return transferBetween(t, lib, log, end, other)
}

// bounceTransfer is transfer through bounce buffers at both ends.
func bounceTransfer(t *testing.T, lib *verbs.Library, log io.Writer) error {
	var ends [2]transporttest.End
	for i := range ends {
		card, m := transporttest.NewFakeDevice(layout(8, 512))
		ends[i] = transporttest.End{Memory: m, Mirror: card}
	}
	return transferBetween(t, lib, log, ends[0], ends[1])
}

func transferBetween(t *testing.T, lib *verbs.Library, log io.Writer, from, to transporttest.End) (err error) {
	s, d := newTransportOn(t, lib, from.Memory), newTransportOn(t, lib, to.Memory)
	for _, e := range []*servedTransport{s, d} {
		e.config.Logger = slog.New(slog.NewTextHandler(log, nil))
	}
	from.Transport, to.Transport = s, d
	if err := s.Probe(t.Context()); err != nil {
		return err
	}
	// Another test covers what a failed device does to Run: here it waits long.
	n, err := s.acquireNIC()
	if err != nil {
		return err
	}
	l := transporttest.Start(t, transporttest.Pair{Source: from, Target: to})
	defer l.Stop()
	defer func() { err = errors.Join(err, s.releaseNIC(n)) }()
	plan := l.Plan(8, 6)
	puller, err := l.OpenOffer(transporttest.Receiver, l.Export(l.Grant()))
	if err != nil {
		return err
	}
	_, err = l.Pull(puller, plan)
	if err == nil {
		if sums, _ := transport.ChecksumBlocks(transporttest.Pool{M: to.Memory}, plan.Dst); !slices.Equal(sums, plan.Sums) {
			t.Error("a pull succeeded with other bytes")
		}
	}
	return errors.Join(err, puller.Close())
}

// TestEveryCallFails makes each call of a transfer fail once, at both ends. Either the
// transfer succeeds, or an error names the call; nothing stays open, and the next
// transfer succeeds.
func TestEveryCallFails(t *testing.T) {
	t.Run("Direct", func(t *testing.T) { checkEveryCallFails(t, transfer) })
	t.Run("Bounce", func(t *testing.T) { checkEveryCallFails(t, bounceTransfer) })
}

func checkEveryCallFails(t *testing.T, move func(*testing.T, *verbs.Library, io.Writer) error) {
	c := newControl(t)
	requireNothingOpen(t)
	lib := openLibrary(t)
	for _, name := range []string{
		"ibv_get_device_list", "ibv_get_device_name", "ibv_open_device", "ibv_query_device", "ibv_alloc_pd", "ibv_query_port", "ibv_reg_mr", "ibv_create_comp_channel",
		"ibv_create_cq", "ibv_create_qp", "ibv_modify_qp", "ibv_post_send", "ibv_poll_cq", "ibv_req_notify_cq", "ibv_get_cq_event", "request",
	} {
		failed := false
		for nth := 1; nth <= 6; nth++ {
			code := int(syscall.ENOSPC)
			if name == "request" {
				code = verbs.RemoteAccess
			}
			c.Fail(name, nth, code)
			c.Set("fake_hold", 2) // so that a completion is waited for
			err := move(t, lib, io.Discard)
			c.Clear()
			failed = failed || err != nil
			if err != nil && name != "request" && !strings.Contains(err.Error(), name+": no space left on device (28)") {
				t.Errorf("%s, call %d: %v", name, nth, err)
			}
			if err != nil && name == "request" && !strings.Contains(err.Error(), "remote access error") {
				t.Errorf("%s %d: %v", name, nth, err)
			}
			if n := lib.OpenResources(); n != (verbs.Resources{}) {
				t.Fatalf("%s, call %d: %+v are still open", name, nth, n)
			}
		}
		if !failed {
			t.Errorf("%s failed, and no transfer did", name)
		}
	}
	if err := move(t, lib, io.Discard); err != nil {
		t.Errorf("the transfer after all failures: %v", err)
	}
}

// TestEveryCloseFails makes each call fail that closes something. It is logged or
// returned, and what stays open is what could not be closed and what that is part of.
func TestEveryCloseFails(t *testing.T) {
	t.Run("Direct", func(t *testing.T) { checkEveryCloseFails(t, transfer) })
	t.Run("Bounce", func(t *testing.T) { checkEveryCloseFails(t, bounceTransfer) })
}

func checkEveryCloseFails(t *testing.T, move func(*testing.T, *verbs.Library, io.Writer) error) {
	newControl(t)
	// It uses its own copy of the library, so that what is never closed affects no other
	// test.
	path := fake.Copy(t, fake.Verbs(t))
	c := fake.Open(t, path)
	lib := testkit.Must(verbs.Open(path))
	if err := move(t, lib, io.Discard); err != nil || c.Live("") != 0 {
		t.Fatalf("a transfer without failures: %v, %d handles are open", err, c.Live(""))
	}
	for _, x := range []struct{ call, kind string }{
		{"ibv_destroy_qp", "pairs"}, {"ibv_destroy_cq", "queues"}, {"ibv_destroy_comp_channel", "channels"}, {"ibv_dereg_mr", "regions"},
		{"ibv_dealloc_pd", "domains"}, {"ibv_close_device", "contexts"},
	} {
		for nth := 1; ; nth++ {
			before, live := c.Calls(x.call), c.Live(x.kind)
			c.Fail(x.call, nth, int(syscall.EBUSY))
			var log testkit.Log
			err := move(t, lib, &log)
			c.Clear()
			if c.Calls(x.call)-before < nth {
				break // a move has fewer of it
			}
			said := fmt.Sprint(err) + log.String()
			if !strings.Contains(said, x.call+": device or resource busy (16)") {
				t.Errorf("%s, call %d: %s", x.call, nth, said)
			}
			if n := c.Live(x.kind) - live; n != 1 {
				t.Errorf("%s, call %d: %d %s are open", x.call, nth, n, x.kind)
			}
			if n := c.Live("lists"); n != 0 {
				t.Errorf("%s, call %d: %d lists are open", x.call, nth, n)
			}
			c.Set("fake_forget", 0)
		}
	}
	if err := move(t, lib, io.Discard); err != nil || c.Live("") != 0 {
		t.Errorf("the transfer after all failures: %v, %d handles are open", err, c.Live(""))
	}
}
