package verbs

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

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

// startEnds runs ends, and returns a function that stops and joins them.
func startEnds(t testing.TB, ends ...transporttest.End) func() {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, len(ends))
	for _, e := range ends {
		go func() { done <- e.Transport.Run(ctx) }()
	}
	return func() {
		cancel()
		for range ends {
			if err := <-done; err != nil {
				t.Errorf("run: %v", err)
			}
		}
		for _, e := range ends {
			e.Memory.Close()
		}
	}
}

// export exports a grant as soon as the source runs.
func export(t testing.TB, e transporttest.End, move string) transport.Offer {
	t.Helper()
	for limit := time.Now().Add(patience); ; runtime.Gosched() {
		offer, err := e.Transport.Export(transport.Grant{Migration: move, Receiver: "b", Deadline: time.Now().Add(patience)})
		if err == nil {
			return offer
		}
		if time.Now().After(limit) {
			t.Fatal(err)
		}
	}
}

func openPuller(t testing.TB, p transporttest.Pair, move string) transport.Puller {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	puller, err := p.Target.Transport.Open(ctx, "b", export(t, p.Source, move))
	if err != nil {
		t.Fatal(err)
	}
	return puller
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed)) }

func fillRandom(b []byte, rng *rand.Rand) {
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
}

// newPlan returns a plan of n blocks: runs of neighbours, and single ones.
func newPlan(source, target *transport.Memory, n int, rng *rand.Rand) transport.Plan {
	p := transport.Plan{}
	to := rng.Perm(target.Blocks)[:n]
	if rng.IntN(2) == 0 {
		slices.Sort(to)
	}
	next := 0
	for _, d := range to {
		if next == source.Blocks || rng.IntN(4) == 0 {
			next = rng.IntN(source.Blocks)
		}
		p.Src, p.Dst = append(p.Src, uint32(next)), append(p.Dst, uint32(d))
		next++
	}
	p.Sums = source.Sums(nil, p.Src)
	return p
}

// TestManyTransfers pulls random plans from one of two layouts into the other, and
// compares the whole memory with a plain copy each time.
func TestManyTransfers(t *testing.T) {
	requireNothingOpen(t)
	rounds := 100
	if real() {
		rounds = 1000
	}
	rng := rand.New(rand.NewPCG(7, 7))
	packed := transport.Layout{Blocks: 32, Regions: []transport.Region{{Stride: 2048, Bytes: 2048}, {Offset: 32 * 2048, Stride: 1024, Bytes: 1024}}}
	shapes := []transport.Layout{packed, layout(24, 2048)}
	transfers, blocks, total := 0, 0, time.Duration(0)
	for i := 0; transfers < rounds; i++ {
		pair := transporttest.Pair{Source: newEnd(t, shapes[i%2]), Target: newEnd(t, shapes[i/2%2])}
		stop := startEnds(t, pair.Source, pair.Target)
		from, to := pair.Source.Memory, pair.Target.Memory
		fillRandom(from.Bytes, rng)
		puller := openPuller(t, pair, fmt.Sprintf("a/%d", i))
		for range 50 {
			p := newPlan(from, to, 1+rng.IntN(24), rng)
			want := &transport.Memory{Layout: to.Layout, Bytes: slices.Clone(to.Bytes)}
			for k := range p.Src {
				for r := range to.Regions {
					copy(want.RegionBytes(p.Dst[k], r), from.RegionBytes(p.Src[k], r))
				}
			}
			stats, err := puller.Pull(t.Context(), p)
			if err != nil || !bytes.Equal(to.Bytes, want.Bytes) {
				t.Fatalf("transfer %d: %v, the same bytes: %v", transfers, err, bytes.Equal(to.Bytes, want.Bytes))
			}
			transfers, blocks, total = transfers+1, blocks+stats.Blocks, total+stats.Duration
		}
		if err := puller.Close(); err != nil {
			t.Error(err)
		}
		stop()
	}
	reportRow(t, "verified transfers", fmt.Sprintf("%d of %d, %d blocks, %.0f MB/s (of an emulated machine)", transfers, transfers, blocks, float64(blocks)*3072/total.Seconds()/1e6))
}

// TestRevokeIsQuick revokes while a receiver pulls, repeatedly, and overwrites the
// source's memory at once.
func TestRevokeIsQuick(t *testing.T) {
	requireNothingOpen(t)
	rng := rand.New(rand.NewPCG(3, 3))
	pair := transporttest.Pair{Source: newEnd(t, layout(200, 4096)), Target: newEnd(t, layout(200, 4096))}
	defer startEnds(t, pair.Source, pair.Target)()
	from, to := pair.Source.Memory, pair.Target.Memory
	var took []time.Duration
	for i := range 12 {
		fillRandom(from.Bytes[:len(from.Bytes)/8], rng)
		p := newPlan(from, to, 200, rng)
		want := slices.Clone(from.Bytes)
		move := fmt.Sprintf("a/%d", i)
		puller := openPuller(t, pair, move)
		first := make(chan struct{})
		ended := make(chan error, 1)
		go func() {
			for n := 0; ; n++ {
				_, err := puller.Pull(t.Context(), p)
				if n == 0 {
					close(first)
				}
				if err != nil {
					ended <- err
					return
				}
			}
		}()
		<-first
		start := time.Now()
		pair.Source.Transport.Revoke(move)
		took = append(took, time.Since(start))
		clear(from.Bytes)
		err := <-ended
		var corrupt *transport.CorruptError
		if errors.As(err, &corrupt) {
			t.Error("a pull read after the fence, and reported blocks to be pulled again")
		}
		after := slices.Clone(to.Bytes)
		copy(from.Bytes, want)
		runtime.Gosched()
		if !bytes.Equal(after, to.Bytes) {
			t.Error("the target's memory changed after a failed pull")
		}
		if err := puller.Close(); err != nil {
			t.Error(err)
		}
	}
	reportTimes(t, "fence: Revoke while a receiver pulls", took, 10*time.Millisecond)
}

// TestCloseIsQuick closes pullers while they pull; nothing is written afterwards.
func TestCloseIsQuick(t *testing.T) {
	requireNothingOpen(t)
	rng := rand.New(rand.NewPCG(4, 4))
	pair := transporttest.Pair{Source: newEnd(t, layout(200, 4096)), Target: newEnd(t, layout(200, 4096))}
	defer startEnds(t, pair.Source, pair.Target)()
	from, to := pair.Source.Memory, pair.Target.Memory
	p := newPlan(from, to, 200, rng)
	var took []time.Duration
	for i := range 12 {
		puller := openPuller(t, pair, fmt.Sprintf("a/%d", i)).(*puller)
		begun, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			close(begun)
			for {
				if _, err := puller.Pull(t.Context(), p); err != nil {
					ended <- err
					return
				}
			}
		}()
		<-begun
		start := time.Now()
		err := errors.Join(puller.pair.MoveToError(), puller.Close())
		took = append(took, time.Since(start))
		if err != nil {
			t.Error(err)
		}
		fillRandom(to.Bytes[:4096], rng)
		after := slices.Clone(to.Bytes)
		<-ended
		if !bytes.Equal(after, to.Bytes) {
			t.Error("the memory changed after the fence")
		}
	}
	reportTimes(t, "fence and release: Close of a receiver at work", took, 0)
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
	lib, env := newFabric(t)
	var took []time.Duration
	for range 5 {
		took = append(took, timeToNoticeKill(t, lib, env))
	}
	reportTimes(t, "dead peer: process killed", took, 300*time.Millisecond)
	if n := lib.OpenResources(); n != (verbs.Resources{}) {
		t.Errorf("%+v are still open", n)
	}
}

// newFabric returns a library that reaches other processes, and the environment that
// those need for it: a fake of its own, unless the device is real.
func newFabric(t *testing.T) (*verbs.Library, []string) {
	t.Helper()
	if real() {
		return openLibrary(t), nil
	}
	whole, err := os.ReadFile(fake.Verbs(t))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "libibverbs.so.1")
	if err := os.WriteFile(path, whole, 0o755); err != nil {
		t.Fatal(err)
	}
	table := filepath.Join(t.TempDir(), "fabric")
	t.Setenv("FAKE_VERBS_FABRIC", table)
	lib, err := verbs.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return lib, []string{"FAKE_VERBS_FABRIC=" + table, childLibrary + "=" + path}
}

// childLibrary is the environment variable with the library of a child.
const childLibrary = "CASCADE_VERBS_LIBRARY"

// timeToNoticeKill returns how long a pull continues after the process of its source was
// killed.
func timeToNoticeKill(t *testing.T, lib *verbs.Library, env []string) time.Duration {
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestChildSource$", "-test.v")
	child.Env = append(append(os.Environ(), "CASCADE_VERBS_CHILD=1"), env...)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer child.Process.Kill()
	var offer transport.Offer
	said := make([]byte, 4096)
	for n := 0; offer.Address == ""; {
		m, err := out.Read(said[n:])
		if err != nil {
			t.Fatalf("%v: %s", err, said[:n])
		}
		n += m
		if _, line, ok := strings.Cut(string(said[:n]), "offer "); ok && strings.Contains(line, "\n") {
			var ticket string
			fmt.Sscan(line, &offer.Address, &ticket)
			b, _ := hex.DecodeString(ticket)
			offer.Transport, offer.Ticket = "verbs", [transport.TicketSize]byte(b)
		}
	}
	m := transporttest.HeapMemory(layout(64, 4096))
	target := transporttest.End{Transport: newTransportOn(t, lib, m), Memory: m}
	defer startEnds(t, target)()
	puller, err := target.Transport.Open(t.Context(), "b", offer)
	if err != nil {
		t.Fatal(err)
	}
	defer puller.Close()
	p := transport.Plan{}
	for i := range uint32(64) {
		p.Src, p.Dst = append(p.Src, i), append(p.Dst, i)
	}
	zero := &transport.Memory{Layout: layout(64, 4096), Bytes: make([]byte, transporttest.Size(layout(64, 4096)))}
	p.Sums = zero.Sums(nil, p.Src)
	if _, err := puller.Pull(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = puller.Pull(t.Context(), p)
	}
	return time.Since(start)
}

// TestChildSource is the process that is killed.
func TestChildSource(t *testing.T) {
	if os.Getenv("CASCADE_VERBS_CHILD") == "" {
		t.Skip("run by TestDeadPeer")
	}
	lib := openLibrary(t)
	if path := os.Getenv(childLibrary); path != "" {
		var err error
		if lib, err = verbs.Open(path); err != nil {
			t.Fatal(err)
		}
	}
	m := transporttest.HeapMemory(layout(64, 4096))
	e := transporttest.End{Transport: newTransportOn(t, lib, m), Memory: m}
	startEnds(t, e)
	offer := export(t, e, "a/1")
	fmt.Printf("offer %s %s\n", offer.Address, hex.EncodeToString(offer.Ticket[:]))
	select {}
}

// TestSilentPeer removes the source's pair silently, as a power loss does: only the
// timeouts of packets are left to notice it.
func TestSilentPeer(t *testing.T) {
	requireNothingOpen(t)
	var took []time.Duration
	for range 5 {
		pair := transporttest.Pair{Source: newEnd(t, layout(64, 4096)), Target: newEnd(t, layout(64, 4096))}
		stop := startEnds(t, pair.Source, pair.Target)
		p := openPuller(t, pair, "a/1").(*puller)
		rng := rand.New(rand.NewPCG(1, 1))
		work := newPlan(pair.Source.Memory, pair.Target.Memory, 64, rng)
		if _, err := p.Pull(t.Context(), work); err != nil {
			t.Fatal(err)
		}
		// From now on the receiver's pair reads from a pair that never existed.
		gone, err := p.nic.device.NewQueuePair(p.queue, depth*len(p.work), 1, p.pieces)
		if err != nil {
			t.Fatal(err)
		}
		own := p.state.localEndpoint(p.nic.device, gone)
		path, err := own.pathTo(p.nic, p.state, own)
		if err != nil {
			t.Fatal(err)
		}
		path.Pair = 0xfffff0
		if err := errors.Join(gone.Init(1, 0), gone.ReadyToReceive(path), gone.ReadyToSend(path), p.pair.Close()); err != nil {
			t.Fatal(err)
		}
		p.pair = gone
		start := time.Now()
		_, err = p.Pull(t.Context(), work)
		took = append(took, time.Since(start))
		var failed *verbs.CompletionError
		if !errors.As(err, &failed) || failed.Status != verbs.RetryExceeded {
			t.Errorf("a pull from a lost peer: %v", err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		stop()
	}
	reportTimes(t, "dead peer: no answer", took, 300*time.Millisecond)
}

// transfer is one whole transfer over a library, from making its ends to closing them.
// The ends log to log. It returns all errors.
func transfer(t *testing.T, lib *verbs.Library, log io.Writer) error {
	return transferBetween(t, lib, log, transporttest.HeapMemory(layout(8, 512)), transporttest.HeapMemory(layout(8, 512)))
}

// bounceTransfer is transfer through bounce buffers at both ends.
func bounceTransfer(t *testing.T, lib *verbs.Library, log io.Writer) error {
	a, from := transporttest.NewFakeDevice(layout(8, 512))
	_, to := transporttest.NewFakeDevice(layout(8, 512))
	fillRandom(from.Bytes, newRand(5))
	a.Store()
	return transferBetween(t, lib, log, from, to)
}

func transferBetween(t *testing.T, lib *verbs.Library, log io.Writer, from, to *transport.Memory) (err error) {
	s, d := newTransportOn(t, lib, from), newTransportOn(t, lib, to)
	for _, e := range []*servedTransport{s, d} {
		e.config.Logger = slog.New(slog.NewTextHandler(log, nil))
	}
	pair := transporttest.Pair{Source: transporttest.End{Transport: s, Memory: from}, Target: transporttest.End{Transport: d, Memory: to}}
	if err := s.Probe(t.Context()); err != nil {
		return err
	}
	// Another test covers what a failed device does to Run: here it waits long.
	n, err := s.acquireNIC()
	if err != nil {
		return err
	}
	stop := startEnds(t, pair.Source, pair.Target)
	defer stop()
	defer func() { err = errors.Join(err, s.releaseNIC(n)) }()
	if from.Device == nil {
		fillRandom(from.Bytes, newRand(5))
	}
	p := newPlan(from, to, 8, rand.New(rand.NewPCG(6, 6)))
	offer := export(t, pair.Source, "a/1")
	puller, err := d.Open(t.Context(), "b", offer)
	if err != nil {
		return err
	}
	_, err = puller.Pull(t.Context(), p)
	if err == nil {
		if sums, _ := transport.ChecksumBlocks(transporttest.Pool{M: to}, p.Dst); !slices.Equal(sums, p.Sums) {
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
	whole, err := os.ReadFile(fake.Verbs(t))
	if err != nil {
		t.Fatal(err)
	}
	// It uses its own copy of the library, so that what is never closed affects no other
	// test.
	path := filepath.Join(t.TempDir(), "libibverbs.so.1")
	if err := os.WriteFile(path, whole, 0o755); err != nil {
		t.Fatal(err)
	}
	c := fake.Open(t, path)
	lib, err := verbs.Open(path)
	if err != nil {
		t.Fatal(err)
	}
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
			var log safeBuffer
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

// safeBuffer is a bytes.Buffer for more than one goroutine.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
