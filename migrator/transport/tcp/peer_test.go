package tcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

var small = transport.Layout{Blocks: 8, Regions: []transport.Region{{Stride: 4, Bytes: 4}, {Offset: 32, Stride: 4, Bytes: 4}}}

// newTestPuller returns a puller whose source is the test, and its memory.
func newTestPuller(t testing.TB, conn net.Conn) (*lease.Puller, *transport.Memory) {
	t.Helper()
	local := transporttest.HeapMemory(small)
	local.Hold()
	return newPuller(&blockReader{socket: conn, remote: small, local: local}, conn), local
}

func twoBlockPlan() transport.Plan {
	return transport.Plan{Src: []uint32{1, 2}, Dst: []uint32{3, 4}, Sums: make([]uint32, 4)}
}

// TestSilentSource checks that a pull fails if the source sends nothing, or stops in the
// middle of an answer.
func TestSilentSource(t *testing.T) {
	for _, says := range [][]byte{nil, appendHead(nil, kindAnswer, 2), append(appendHead(nil, kindAnswer, 2), 1, 2, 3, 4, 5)} {
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe()
			p, _ := newTestPuller(t, here)
			go func() {
				if _, err := io.ReadFull(there, make([]byte, headSize+8)); err == nil {
					there.Write(says)
				}
			}()
			start := time.Now()
			_, err := p.Pull(t.Context(), twoBlockPlan())
			var late net.Error
			if !errors.As(err, &late) || !late.Timeout() || time.Since(start) > stallTimeout {
				t.Errorf("after %d bytes: %v in %v", len(says), err, time.Since(start))
			}
			p.Close()
			there.Close()
		})
	}
}

// TestSlowSource checks that a slow source does not fail a pull.
func TestSlowSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		p, _ := newTestPuller(t, here)
		go func() {
			if _, err := io.ReadFull(there, make([]byte, headSize+8)); err != nil {
				return
			}
			for _, b := range append(appendHead(nil, kindAnswer, 2), make([]byte, 16)...) {
				time.Sleep(stallTimeout / 10)
				there.Write([]byte{b})
			}
		}()
		var corrupt *transport.CorruptError
		if _, err := p.Pull(t.Context(), twoBlockPlan()); !errors.As(err, &corrupt) || !slices.Equal(corrupt.Blocks, []int{0, 1}) {
			t.Errorf("pull: %v", err)
		}
		p.Close()
		there.Close()
	})
}

// TestReceiverReadsNothing checks that a receiver which does not read ends its session
// after stallTimeout.
func TestReceiverReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		source := lease.Source{Pool: transporttest.Pool{M: transporttest.HeapMemory(small)}}
		source.Start(func() string { return "here" })
		offer := testkit.Must(source.Export(transport.Grant{Migration: "a/1", Receiver: "b", Deadline: time.Now().Add(time.Minute)}))
		source.Announce("a/1", []uint32{1})
		lease := testkit.Must(source.Redeem(offer.Ticket, "b"))
		done := make(chan error)
		go func() {
			w := &blockWriter{conn: here, lease: lease}
			done <- w.serveAsks()
			lease.End()
		}()
		start := time.Now()
		testkit.Must(there.Write(appendAsk(nil, []uint32{1})))
		if err := <-done; err == nil || time.Since(start) != stallTimeout {
			t.Errorf("the session ended after %v: %v", time.Since(start), err)
		}
		synctest.Wait()
	})
}

// TestSlowReceiver checks that a receiver which reads a large block slowly keeps its session.
func TestSlowReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		w := &blockWriter{conn: here, lease: &lease.Lease{Grant: transport.Grant{Deadline: time.Now().Add(time.Minute)}}}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for err := error(nil); err == nil; {
				time.Sleep(stallTimeout / 2)
				_, err = io.ReadFull(there, make([]byte, 1<<20))
			}
		}()
		if n, err := w.Write(make([]byte, 16<<20)); err != nil {
			t.Errorf("after %d bytes: %v", n, err)
		}
		here.Close()
		<-done
	})
}

func TestAskRoundTrip(t *testing.T) {
	want := []uint32{0, 7, 3, 3}
	got, err := readAsk(bytes.NewReader(appendAsk(nil, want)), nil, make([]byte, 4*maxAsk), 8)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if _, err := readAsk(bytes.NewReader(appendAsk(nil, want)), nil, make([]byte, 4*maxAsk), 7); err == nil {
		t.Error("a block out of range is accepted")
	}
	if _, err := readAsk(bytes.NewReader(appendHead(nil, kindAsk, maxAsk+1)), nil, make([]byte, 4*maxAsk), 8); err == nil {
		t.Error("an ask with too many blocks is accepted")
	}
}

func FuzzAsk(f *testing.F) {
	f.Add(appendAsk(nil, []uint32{0, 7, 3}))
	f.Add(appendHead(nil, kindAnswer, 1))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bytes.NewReader(in)
		blocks, err := readAsk(r, nil, make([]byte, 4*maxAsk), 8)
		if err != nil {
			return
		}
		if out := appendAsk(nil, blocks); !bytes.Equal(out, in[:len(in)-r.Len()]) {
			t.Errorf("%x decodes and encodes to %x", in, out)
		}
		for _, b := range blocks {
			if b >= 8 {
				t.Errorf("block %d of 8", b)
			}
		}
	})
}

// scriptedConn is a connection whose peer has sent everything already.
type scriptedConn struct{ in *bytes.Reader }

func (s scriptedConn) Read(b []byte) (int, error)       { return s.in.Read(b) }
func (s scriptedConn) Write(b []byte) (int, error)      { return len(b), nil }
func (s scriptedConn) Close() error                     { return nil }
func (s scriptedConn) LocalAddr() net.Addr              { return nil }
func (s scriptedConn) RemoteAddr() net.Addr             { return nil }
func (s scriptedConn) SetDeadline(time.Time) error      { return nil }
func (s scriptedConn) SetReadDeadline(time.Time) error  { return nil }
func (s scriptedConn) SetWriteDeadline(time.Time) error { return nil }

// FuzzAnswer checks that whatever a source sends, a pull ends, writes its own blocks
// only, and succeeds only with the right bytes.
func FuzzAnswer(f *testing.F) {
	f.Add(append(appendHead(nil, kindAnswer, 2), make([]byte, 16)...))
	f.Add(append(appendHead(nil, kindAnswer, 2), bytes.Repeat([]byte{1}, 40)...))
	f.Add(appendHead(nil, kindAnswer, 3))
	f.Add([]byte{kindAnswer})
	zero := transporttest.HeapMemory(small).Sums(nil, []uint32{0, 1})
	f.Fuzz(func(t *testing.T, in []byte) {
		p, local := newTestPuller(t, scriptedConn{bytes.NewReader(in)})
		defer p.Close()
		plan := twoBlockPlan()
		plan.Sums = zero
		_, err := p.Pull(context.Background(), plan)
		for b := range uint32(small.Blocks) {
			for r := range small.Regions {
				if part := local.RegionBytes(b, r); !slices.Contains(plan.Dst, b) && !bytes.Equal(part, make([]byte, 4)) {
					t.Errorf("block %d is not part of the plan and changed to %x", b, part)
				}
			}
		}
		if err == nil && !bytes.Equal(local.Bytes, make([]byte, len(local.Bytes))) {
			t.Error("the pull succeeded with bytes that do not have the checksums")
		}
	})
}
