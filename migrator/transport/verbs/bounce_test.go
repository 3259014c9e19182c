package verbs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/internal/pull"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/handshake"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// farSide is an end whose pool the NIC does not reach.
func farSide(t testing.TB, l transport.Layout) transporttest.End {
	t.Helper()
	card, m := transporttest.NewFakeDevice(l)
	return transporttest.End{Transport: over(t, m), Memory: m, Mirror: card}
}

// TestConformanceBounce runs the suite over pools that the NIC does not reach, at one
// end and at both.
func TestConformanceBounce(t *testing.T) {
	nothingLeft(t)
	for _, x := range []struct {
		name           string
		source, target func(testing.TB, transport.Layout) transporttest.End
	}{{"both", farSide, farSide}, {"source", farSide, side}, {"target", side, farSide}} {
		if real() && x.name != "both" && os.Getenv("CASCADE_TEST_ALL") == "" {
			break // an emulated machine takes half a minute for each
		}
		t.Run(x.name, func(t *testing.T) {
			transporttest.Run(t, func(t *testing.T, source, target transport.Layout) transporttest.Pair {
				return transporttest.Pair{Source: x.source(t, source), Target: x.target(t, target)}
			})
		})
	}
}

// TestRequestsOfABounce counts what a plan of 8,192 tokens, with a region for each
// layer and its blocks scattered, is for the NIC: one READ where both ends pack.
func TestRequestsOfABounce(t *testing.T) {
	c := control(t)
	nothingLeft(t)
	const pieces = 4 // the fake's
	for _, x := range []struct {
		name           string
		source, target func(testing.TB, transport.Layout) transporttest.End
		reads          int
	}{{"source", farSide, side, 56 * 512 / pieces}, {"target", side, farSide, 56 * 512}, {"both", farSide, farSide, 1}} {
		pair := transporttest.Pair{Source: x.source(t, layers()), Target: x.target(t, layers())}
		stop := runs(t, pair.Source, pair.Target)
		puller := opened(t, pair, "a/1")
		p := tables(pair.Source.Memory)["scattered"]
		before := c.Calls("request")
		if _, err := puller.Pull(t.Context(), p); err != nil {
			t.Errorf("%s: %v", x.name, err)
		}
		// Some neighbours are neighbours by chance.
		if n := c.Calls("request") - before; n > x.reads || n < x.reads*99/100 {
			t.Errorf("%s: %d READs, want %d", x.name, n, x.reads)
		}
		if err := puller.Close(); err != nil {
			t.Error(err)
		}
		stop()
	}
}

// TestBounceFails has either end's device fail: the pull ends, and says why.
func TestBounceFails(t *testing.T) {
	nothingLeft(t)
	for _, whose := range []string{"source", "target"} {
		pair := transporttest.Pair{Source: farSide(t, layout(8, 512)), Target: farSide(t, layout(8, 512))}
		stop := runs(t, pair.Source, pair.Target)
		puller := opened(t, pair, "a/1")
		end := map[string]transporttest.End{"source": pair.Source, "target": pair.Target}[whose]
		end.Mirror.(*transporttest.FakeDevice).Fail = errors.New("the GPU has fallen off the bus")
		_, err := puller.Pull(t.Context(), plan(pair.Source.Memory, pair.Target.Memory, 8, rng(1)))
		if err == nil || !strings.Contains(err.Error(), "fallen off the bus") {
			t.Errorf("%s: %v", whose, err)
		}
		if err := puller.Close(); err != nil {
			t.Error(err)
		}
		stop()
	}
}

// TestBlocksTooLarge has blocks that no slot takes: the probe says so.
func TestBlocksTooLarge(t *testing.T) {
	nothingLeft(t)
	card, _ := transporttest.NewFakeDevice(layout(1, 64))
	m := &transport.Memory{Layout: transport.Layout{Blocks: 1, Regions: []transport.Region{{Stride: maxBlock + 1, Bytes: maxBlock + 1}}}, Device: card}
	defer m.Close()
	if err := over(t, m).Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "blocks of 67108865 bytes") {
		t.Error(err)
	}
}

// TestReceiverLies has receivers ask for what they should not: their move ends, and
// the source serves the next.
func TestReceiverLies(t *testing.T) {
	nothingLeft(t)
	l := transport.Layout{Blocks: 5000, Regions: []transport.Region{{Stride: 2048, Bytes: 2048}}}
	for _, x := range []struct {
		name, want string
		from       func(testing.TB, transport.Layout) transporttest.End
		ask        []byte
	}{
		{"nothing is packed", "nothing is packed", side, appendAsk(nil, 0, []uint32{1})},
		{"no such slot", "into slot 4", farSide, appendAsk(nil, bounceBuffers, []uint32{1})},
		{"no such block", "block 5000 of a pool of 5000", farSide, appendAsk(nil, 0, []uint32{5000})},
		{"too many for a slot", "2049 blocks into slot 0", farSide, appendAsk(nil, 0, make([]uint32, 2049))},
		{"too many for an ask", "ask: 16392 bytes", farSide, appendAsk(nil, 0, make([]uint32, maxAsked+1))},
		{"no block", "ask: 4 bytes", farSide, appendAsk(nil, 0, nil)},
		{"half a block", "ask: 9 bytes", farSide, make([]byte, 9)},
		{"nothing", "ask: 0 bytes", farSide, nil},
		{"again and again", "again and again", farSide, nil},
	} {
		pair := transporttest.Pair{Source: x.from(t, l), Target: side(t, l)}
		stop := runs(t, pair.Source, pair.Target)
		liar := opened(t, pair, "a/1").(*puller)
		again := 1
		if x.want == x.name {
			x.ask, again = appendAsk(nil, 0, make([]uint32, 2048)), maxPoolReads*l.Blocks/2048+1
		}
		for range again { // and reads what it is answered, as far as it may
			if err := liar.stream.SendMsg(wrapperspb.Bytes(x.ask)); err != nil {
				break // the source has ended it
			}
			select {
			case <-liar.replies:
			case <-liar.streamEnded:
			}
		}
		<-liar.streamEnded
		p := plan(pair.Source.Memory, pair.Target.Memory, 8, rng(1))
		if _, err := liar.Pull(t.Context(), p); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v", x.name, err)
		}
		if err := liar.Close(); err != nil {
			t.Error(err)
		}
		next := opened(t, pair, "a/2")
		if _, err := next.Pull(t.Context(), p); err != nil {
			t.Errorf("%s: the next: %v", x.name, err)
		}
		if err := next.Close(); err != nil {
			t.Error(err)
		}
		stop()
	}
}

// TestSourceLies has a source say what nobody asked for, or nothing of use.
func TestSourceLies(t *testing.T) {
	nothingLeft(t)
	for _, x := range []struct {
		name, want string
		says       [][]byte
	}{
		{"another slot", "packed slot 3, and not 0", [][]byte{{3, 0, 0, 0}}},
		{"too many", "packs what nobody asks for", [][]byte{{0, 0, 0, 0}, {1, 0, 0, 0}, {2, 0, 0, 0}, {3, 0, 0, 0}, {0, 0, 0, 0}}},
		{"half a slot", "speaks out of turn", [][]byte{{0, 0}}},
	} {
		pair := transporttest.Pair{Source: farSide(t, layout(8, 512)), Target: side(t, layout(8, 512))}
		stop := runs(t, pair.Source, pair.Target)
		p := opened(t, pair, "a/1").(*puller)
		err := p.receiveReplies(&saying{says: x.says})
		if errors.Is(err, io.EOF) {
			_, err = p.Pull(t.Context(), plan(pair.Source.Memory, pair.Target.Memory, 8, rng(1)))
		}
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v", x.name, err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		stop()
	}
}

// saying is a source's stream that says some things, and ends.
type saying struct {
	grpc.ClientStream
	says [][]byte
}

func (s *saying) RecvMsg(m any) error {
	if len(s.says) == 0 {
		return io.EOF
	}
	m.(*wrapperspb.BytesValue).Value = s.says[0]
	s.says = s.says[1:]
	return nil
}

// deaf is a receiver that asks for ever and reads nothing after the first answer.
type deaf struct {
	grpc.ServerStream
	ctx   context.Context
	hello []byte
	asked int
	read  int
}

func (d *deaf) Context() context.Context { return d.ctx }

func (d *deaf) RecvMsg(m any) error {
	b := d.hello
	if d.asked++; d.asked > 1 {
		b = appendAsk(nil, 0, []uint32{1})
	}
	m.(*wrapperspb.BytesValue).Value = b
	return d.ctx.Err()
}

func (d *deaf) SendMsg(any) error {
	if d.read++; d.read == 1 {
		return nil
	}
	<-d.ctx.Done()
	return d.ctx.Err()
}

// TestReceiverDoesNotRead has a receiver that asks and reads no answers: the source
// lets it go, and Revoke waits for nobody.
func TestReceiverDoesNotRead(t *testing.T) {
	nothingLeft(t)
	pair := transporttest.Pair{Source: farSide(t, layout(8, 512)), Target: side(t, layout(8, 512))}
	stop := runs(t, pair.Source, pair.Target)
	p := opened(t, pair, "a/1").(*puller)
	hello, err := handshake.Hello{Ticket: exported(t, pair.Source, "a/2").Ticket, Receiver: "b"}.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	d := &deaf{ctx: ctx, hello: p.state.localEndpoint(p.nic.device, p.pair).append(hello)}
	err = pair.Source.Transport.(*served).serveReceiver(d)
	if err == nil || !strings.Contains(err.Error(), "does not read") {
		t.Error(err)
	}
	pair.Source.Transport.Revoke("a/2")
	cancel()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	stop()
}

// TestBounceEnds ends a receiver that waits for a source which does not answer: by
// its context, by Close, and by the grant's own end.
func TestBounceEnds(t *testing.T) {
	nothingLeft(t)
	for _, how := range []string{"context", "close", "grant"} {
		pair := transporttest.Pair{Source: farSide(t, layout(8, 512)), Target: side(t, layout(8, 512))}
		stop := runs(t, pair.Source, pair.Target)
		p := opened(t, pair, "a/1").(*puller)
		p.stream = mute{p.stream}
		ctx, cancel := context.WithCancel(t.Context())
		want := context.Canceled
		switch how {
		case "context":
			time.AfterFunc(time.Millisecond, cancel)
		case "close":
			want = pull.ErrClosed
			time.AfterFunc(time.Millisecond, func() { p.Close() })
		case "grant":
			want = errExpired
			p.deadline = time.Now().Add(5 * time.Millisecond)
		}
		_, err := p.Pull(ctx, plan(pair.Source.Memory, pair.Target.Memory, 8, rng(1)))
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", how, err)
		}
		cancel()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		stop()
	}
}

// TestBounceFailsUnderWay has a READ fail while the receiver waits for a source that
// packs no more: the pull ends by what the NIC says.
func TestBounceFailsUnderWay(t *testing.T) {
	c := control(t)
	nothingLeft(t)
	l := transport.Layout{Blocks: 16, Regions: []transport.Region{{Stride: 1 << 20, Bytes: 1 << 20}}} // four to a slot
	pair := transporttest.Pair{Source: farSide(t, l), Target: side(t, l)}
	stop := runs(t, pair.Source, pair.Target)
	p := opened(t, pair, "a/1").(*puller)
	p.stream = &tired{p.stream, 1}
	c.Fail("request", 1, verbs.RemoteAccess)
	defer c.Clear()
	_, err := p.Pull(t.Context(), plan(pair.Source.Memory, pair.Target.Memory, 16, rng(1)))
	var failed *verbs.CompletionError
	if !errors.As(err, &failed) || failed.Status != verbs.RemoteAccess {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	stop()
}

// tired loses all but the first n that are sent.
type tired struct {
	grpc.ClientStream
	n int
}

func (s *tired) SendMsg(m any) error {
	if s.n--; s.n < 0 {
		return nil
	}
	return s.ClientStream.SendMsg(m)
}

// mute loses what is sent.
type mute struct{ grpc.ClientStream }

func (mute) SendMsg(any) error { return nil }

// FuzzEnd, FuzzKey and FuzzAsk decode what a peer may say: what is taken is in range,
// and is what it was encoded from.
func FuzzEnd(f *testing.F) {
	f.Add(endpoint{pair: 7, psn: 9, mtu: 3, reads: 16, link: linkEthernet, version: 2}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parseEndpoint(b)
		if err != nil {
			return
		}
		if b[30], b[31] = 0, 0; !bytes.Equal(e.append(nil), b) || e.pair >= 1<<24 || e.mtu > 5 {
			t.Errorf("%+v of %x", e, b)
		}
	})
}

func FuzzKey(f *testing.F) {
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
		slot, blocks, err := parseAsk(nil, b, pool)
		if err != nil {
			return
		}
		if len(blocks) == 0 || len(blocks) > maxAsked || int64(slices.Max(blocks)) >= int64(pool) || !bytes.Equal(appendAsk(nil, slot, blocks), b) {
			t.Errorf("slot %d and %d of %d blocks of %x", slot, blocks, pool, b)
		}
	})
}
