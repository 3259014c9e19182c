package verbs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// newBounceEnd returns an end whose pool the NIC does not reach.
func newBounceEnd(t testing.TB, l transport.Layout) transporttest.End {
	t.Helper()
	card, m := transporttest.NewFakeDevice(l)
	return transporttest.End{Transport: newTransport(t, m), Memory: m, Mirror: card}
}

// startBounceSource starts a pair whose source has a pool that its NIC does not reach.
func startBounceSource(t testing.TB, l transport.Layout) *transporttest.Link {
	t.Helper()
	return transporttest.Start(t, transporttest.Pair{Source: newBounceEnd(t, l), Target: newEnd(t, l)})
}

// TestConformanceBounce runs the suite over pools that the NIC does not reach, at one end
// and at both.
func TestConformanceBounce(t *testing.T) {
	requireNothingOpen(t)
	for _, x := range []struct {
		name           string
		source, target func(testing.TB, transport.Layout) transporttest.End
		run            func(*testing.T, func(*testing.T, transport.Layout, transport.Layout) transporttest.Pair)
	}{{"both", newBounceEnd, newBounceEnd, transporttest.Run}, {"source", newBounceEnd, newEnd, transporttest.RunShort}, {"target", newEnd, newBounceEnd, transporttest.RunShort}} {
		t.Run(x.name, func(t *testing.T) {
			x.run(t, func(t *testing.T, source, target transport.Layout) transporttest.Pair {
				return transporttest.Pair{Source: x.source(t, source), Target: x.target(t, target)}
			})
		})
	}
}

// TestBounceRequests counts the READs of a plan of 8,192 tokens, with a region for each
// layer and scattered blocks: one READ if both ends pack.
func TestBounceRequests(t *testing.T) {
	c := newControl(t)
	requireNothingOpen(t)
	const pieces = 4 // the fake's
	for _, x := range []struct {
		name           string
		source, target func(testing.TB, transport.Layout) transporttest.End
		reads          int
	}{{"source", newBounceEnd, newEnd, 56 * 512 / pieces}, {"target", newEnd, newBounceEnd, 56 * 512}, {"both", newBounceEnd, newBounceEnd, 1}} {
		l := transporttest.Start(t, transporttest.Pair{Source: x.source(t, layeredLayout()), Target: x.target(t, layeredLayout())})
		puller, plan := l.Open(), namedPlans(l.Source.Memory)["scattered"]
		before := c.Calls("request")
		if _, err := l.Pull(puller, plan); err != nil {
			t.Errorf("%s: %v", x.name, err)
		}
		// Some blocks are neighbours by chance.
		if n := c.Calls("request") - before; n > x.reads || n < x.reads*99/100 {
			t.Errorf("%s: %d READs, want %d", x.name, n, x.reads)
		}
		l.Stop()
	}
}

// TestBounceFails checks that a pull ends with the cause when either end's device fails.
func TestBounceFails(t *testing.T) {
	requireNothingOpen(t)
	for _, whose := range []string{"source", "target"} {
		l := transporttest.Start(t, transporttest.Pair{Source: newBounceEnd(t, layout(8, 512)), Target: newBounceEnd(t, layout(8, 512))})
		puller, plan := l.Open(), l.Plan(8, 1)
		end := map[string]transporttest.End{"source": l.Source, "target": l.Target}[whose]
		end.Mirror.(*transporttest.FakeDevice).Fail = errors.New("the GPU has fallen off the bus")
		_, err := l.Pull(puller, plan)
		if err == nil || !strings.Contains(err.Error(), "fallen off the bus") {
			t.Errorf("%s: %v", whose, err)
		}
		l.Stop()
	}
}

// TestBlocksTooLarge checks that the probe rejects blocks that do not fit into a buffer.
func TestBlocksTooLarge(t *testing.T) {
	requireNothingOpen(t)
	card, _ := transporttest.NewFakeDevice(layout(1, 64))
	m := &transport.Memory{Layout: transport.Layout{Blocks: 1, Regions: []transport.Region{{Stride: maxBlock + 1, Bytes: maxBlock + 1}}}, Device: card}
	defer m.Close()
	if err := newTransport(t, m).Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "blocks of 67108865 bytes") {
		t.Error(err)
	}
}

// slowPinner is a device that pins nothing before all of several calls have come.
type slowPinner struct {
	*transporttest.FakeDevice
	calls sync.WaitGroup
}

func (d *slowPinner) Pin([]byte) (func() error, error) {
	d.calls.Done()
	d.calls.Wait()
	return func() error { return nil }, nil
}

// TestBuffersAreBounded makes the bounce buffers of many pulls at the same time: they stay within their bound.
func TestBuffersAreBounded(t *testing.T) {
	requireNothingOpen(t)
	card, _ := transporttest.NewFakeDevice(layout(1, 64))
	d := &slowPinner{FakeDevice: card}
	m := &transport.Memory{Layout: transport.Layout{Blocks: 1, Regions: []transport.Region{{Stride: maxBlock, Bytes: maxBlock}}}, Device: d}
	defer m.Close()
	n := testkit.Must(openNIC(newTransport(t, m).config))
	const each, pulls = bounceBuffers * maxBlock, 8
	d.calls.Add(maxStaged / each)
	regions := make([]*region, pulls)
	var all sync.WaitGroup
	for i := range regions {
		all.Go(func() { regions[i], _ = n.acquireBuffers(m) })
	}
	all.Wait()
	made := 0
	for _, r := range regions {
		if r != nil {
			made++
			testkit.NoError(t, n.releaseRegion(r, transporttest.Pool{M: m}))
		}
	}
	if want := maxStaged / each; made != want || n.staged.Load() != 0 {
		t.Errorf("buffers for %d pulls at a time, want %d; %d bytes are left", made, want, n.staged.Load())
	}
	testkit.NoError(t, n.close())
}

// TestReceiverLies checks that invalid asks end the pull of their receiver, and that the
// source serves the next one.
func TestReceiverLies(t *testing.T) {
	requireNothingOpen(t)
	many := transport.Layout{Blocks: 5000, Regions: []transport.Region{{Stride: 2048, Bytes: 2048}}}
	for _, x := range []struct {
		name, want string
		from       func(testing.TB, transport.Layout) transporttest.End
		ask        []byte
	}{
		{"pool is not packed", "that it can read", newEnd, appendAsk(nil, 0, []uint32{1})},
		{"no such buffer", "do not fit into buffer 4", newBounceEnd, appendAsk(nil, bounceBuffers, []uint32{1})},
		{"no such block", "block 5000 of a pool of 5000", newBounceEnd, appendAsk(nil, 0, []uint32{5000})},
		{"too many for a buffer", "2049 blocks do not fit into buffer 0", newBounceEnd, appendAsk(nil, 0, make([]uint32, 2049))},
		{"too many for an ask", "ask: 16392 bytes", newBounceEnd, appendAsk(nil, 0, make([]uint32, maxAsked+1))},
		{"no block", "ask: 4 bytes", newBounceEnd, appendAsk(nil, 0, nil)},
		{"half a block", "ask: 9 bytes", newBounceEnd, make([]byte, 9)},
		{"nothing", "ask: 0 bytes", newBounceEnd, nil},
		{"asked for too many blocks", "asked for too many blocks", newBounceEnd, nil},
	} {
		l := transporttest.Start(t, transporttest.Pair{Source: x.from(t, many), Target: newEnd(t, many)})
		liar, plan := l.Open().(*puller), l.Plan(8, 1)
		again := 1
		if x.want == x.name {
			x.ask, again = appendAsk(nil, 0, make([]uint32, 2048)), maxPoolReads*many.Blocks/2048+1
		}
		for range again { // reads the answers, as far as it may
			if err := liar.stream.SendMsg(wrapperspb.Bytes(x.ask)); err != nil {
				break // the source has ended it
			}
			select {
			case <-liar.replies:
			case <-liar.streamEnded:
			}
		}
		<-liar.streamEnded
		if _, err := l.Pull(liar, plan); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v", x.name, err)
		}
		l.RequirePull(l.Open(), plan)
		l.Stop()
	}
}

// TestSourceLies checks that replies which were not asked for, or are malformed, end the
// pull.
func TestSourceLies(t *testing.T) {
	requireNothingOpen(t)
	for _, x := range []struct {
		name, want string
		says       [][]byte
	}{
		{"another buffer", "packed buffer 3, want 0", [][]byte{{3, 0, 0, 0}}},
		{"too many", "without being asked", [][]byte{{0, 0, 0, 0}, {1, 0, 0, 0}, {2, 0, 0, 0}, {3, 0, 0, 0}, {0, 0, 0, 0}}},
		{"half a buffer", "malformed reply", [][]byte{{0, 0}}},
	} {
		l := startBounceSource(t, layout(8, 512))
		p := l.Open().(*puller)
		err := p.receiveReplies(&scriptedStream{says: x.says})
		if errors.Is(err, io.EOF) {
			_, err = p.Pull(t.Context(), l.Plan(8, 1))
		}
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v", x.name, err)
		}
		l.Stop()
	}
}

// scriptedStream is a source's stream that sends some messages and ends.
type scriptedStream struct {
	grpc.ClientStream
	says [][]byte
}

func (s *scriptedStream) RecvMsg(m any) error {
	if len(s.says) == 0 {
		return io.EOF
	}
	m.(*wrapperspb.BytesValue).Value = s.says[0]
	s.says = s.says[1:]
	return nil
}

// deafStream is a receiver's stream that asks forever and reads nothing after the first
// answer.
type deafStream struct {
	grpc.ServerStream
	ctx   context.Context
	hello []byte
	asked int
	read  int
}

func (d *deafStream) Context() context.Context { return d.ctx }

func (d *deafStream) RecvMsg(m any) error {
	b := d.hello
	if d.asked++; d.asked > 1 {
		b = appendAsk(nil, 0, []uint32{1})
	}
	m.(*wrapperspb.BytesValue).Value = b
	return d.ctx.Err()
}

func (d *deafStream) SendMsg(any) error {
	if d.read++; d.read == 1 {
		return nil
	}
	<-d.ctx.Done()
	return d.ctx.Err()
}

// TestReceiverDoesNotRead checks that the source ends the session of a receiver that asks
// and does not read, and that Revoke does not wait for it.
func TestReceiverDoesNotRead(t *testing.T) {
	requireNothingOpen(t)
	l := startBounceSource(t, layout(8, 512))
	p := l.Open().(*puller)
	hello, err := lease.Hello{Ticket: l.Export(l.Grant()).Ticket, Receiver: transporttest.Receiver}.Append(nil)
	testkit.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	d := &deafStream{ctx: ctx, hello: p.state.localEndpoint(p.nic.device, p.pair).append(hello)}
	err = l.Source.Transport.(*servedTransport).serveReceiver(d)
	if err == nil || !strings.Contains(err.Error(), "does not read") {
		t.Error(err)
	}
	l.Source.Transport.Revoke(l.Migration)
	cancel()
	l.Stop()
}

// TestBounceEnds ends a receiver that waits for a source which does not answer: by its
// context, by Close, and by the end of the grant.
func TestBounceEnds(t *testing.T) {
	requireNothingOpen(t)
	for _, how := range []string{"context", "close", "grant"} {
		l := startBounceSource(t, layout(8, 512))
		p := l.Open().(*puller)
		p.stream = silentStream{p.stream}
		ctx, cancel := context.WithCancel(t.Context())
		want := context.Canceled
		switch how {
		case "context":
			time.AfterFunc(time.Millisecond, cancel)
		case "close":
			want = lease.ErrClosed
			time.AfterFunc(time.Millisecond, func() { p.Close() })
		case "grant":
			want = errExpired
			p.deadline = time.Now().Add(5 * time.Millisecond)
		}
		_, err := p.Pull(ctx, l.Plan(8, 1))
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", how, err)
		}
		cancel()
		l.Stop()
	}
}

// TestReadFailsWhileWaiting fails a READ while the receiver waits for a source that packs
// no more: the pull ends with the error of the NIC.
func TestReadFailsWhileWaiting(t *testing.T) {
	c := newControl(t)
	requireNothingOpen(t)
	large := transport.Layout{Blocks: 16, Regions: []transport.Region{{Stride: 1 << 20, Bytes: 1 << 20}}} // four to a buffer
	l := startBounceSource(t, large)
	p := l.Open().(*puller)
	p.stream = &droppingStream{p.stream, 1}
	c.Fail("request", 1, verbs.RemoteAccess)
	defer c.Clear()
	_, err := p.Pull(t.Context(), l.Plan(16, 1))
	var failed *verbs.CompletionError
	if !errors.As(err, &failed) || failed.Status != verbs.RemoteAccess {
		t.Error(err)
	}
	l.Stop()
}

// droppingStream drops all messages but the first n.
type droppingStream struct {
	grpc.ClientStream
	n int
}

func (s *droppingStream) SendMsg(m any) error {
	if s.n--; s.n < 0 {
		return nil
	}
	return s.ClientStream.SendMsg(m)
}

// silentStream drops all messages.
type silentStream struct{ grpc.ClientStream }

func (silentStream) SendMsg(any) error { return nil }

// FuzzEndpoint, FuzzRemoteMemory and FuzzAsk decode what a peer may send: what is
// accepted is in range, and encodes to the same bytes.
func FuzzEndpoint(f *testing.F) {
	f.Add(endpoint{pair: 7, psn: 9, mtu: 3, reads: 16, link: linkEthernet, version: 2}.append(nil))
	f.Add(endpoint{pair: 7, mtu: 3, link: linkEthernet}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parseEndpoint(b)
		if err != nil {
			return
		}
		if b[30], b[31] = 0, 0; !bytes.Equal(e.append(nil), b) || e.pair >= 1<<24 || e.mtu > 5 || e.reads == 0 {
			t.Errorf("%+v of %x", e, b)
		}
	})
}

func FuzzRemoteMemory(f *testing.F) {
	f.Add(remoteMemory{base: 1 << 20, key: 7, left: time.Second}.append(nil), int64(1<<30), int64(4096))
	f.Add(remoteMemory{base: 1 << 20, key: 7, left: time.Second, buffers: 4, bufferBytes: 8192}.append(nil), int64(1<<30), int64(4096))
	f.Fuzz(func(t *testing.T, b []byte, size, block int64) {
		if size < 0 || block <= 0 {
			return
		}
		k, err := parseRemoteMemory(b, size, block)
		if err != nil {
			return
		}
		reach := uint64(size)
		if k.buffers > 0 {
			reach = uint64(k.buffers) * k.bufferBytes
		}
		if !bytes.Equal(k.append(nil), b) || k.base+reach < k.base || k.left < 0 || k.buffers == 1 || k.buffers > 0 && k.bufferBytes < uint64(block) {
			t.Errorf("%+v of %x", k, b)
		}
	})
}

func FuzzAsk(f *testing.F) {
	f.Add(appendAsk(nil, 3, []uint32{0, 6, 2}), 7)
	f.Fuzz(func(t *testing.T, b []byte, pool int) {
		buffer, blocks, err := parseAsk(nil, b, pool)
		if err != nil {
			return
		}
		if len(blocks) == 0 || len(blocks) > maxAsked || int64(slices.Max(blocks)) >= int64(pool) || !bytes.Equal(appendAsk(nil, buffer, blocks), b) {
			t.Errorf("buffer %d and %d of %d blocks of %x", buffer, blocks, pool, b)
		}
	})
}
