package lease_test

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
	"github.com/cascadeinfer/cascade/policies"
)

var layout = transport.Layout{Blocks: 3, Regions: []transport.Region{{Offset: 0, Stride: 8, Bytes: 8}, {Offset: 24, Stride: 16, Bytes: 4}}}

func TestHelloRoundTrip(t *testing.T) {
	want := lease.Hello{Ticket: [transport.TicketSize]byte{1, 15: 2}, Receiver: "replica-7"}
	b := testkit.Must(want.Append([]byte("before")))
	got, err := lease.ReadHello(bytes.NewReader(b[len("before"):]))
	if err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	long := lease.Hello{Receiver: policies.ReplicaID(strings.Repeat("x", lease.MaxReceiver+1))}
	if _, err := long.Append(nil); err == nil {
		t.Error("Append accepts a receiver's name that is too long")
	}
}

func TestWelcomeRoundTrip(t *testing.T) {
	b := testkit.Must(lease.AppendWelcome(nil, layout, 64))
	r := bytes.NewReader(append(b, 9))
	got, size, err := lease.ReadWelcome(r)
	if err != nil || size != 64 || !reflect.DeepEqual(got, layout) || r.Len() != 1 {
		t.Errorf("got %+v of %d bytes, %v, %d left; want %+v", got, size, err, r.Len(), layout)
	}
	if _, _, err := lease.ReadWelcome(bytes.NewReader(lease.AppendRefusal(nil))); !errors.Is(err, transport.ErrRefused) {
		t.Errorf("ReadWelcome of a refusal: %v", err)
	}
	if _, err := lease.AppendWelcome(nil, transport.Layout{Blocks: 1, Regions: make([]transport.Region, lease.MaxRegions+1)}, 64); err == nil {
		t.Error("AppendWelcome accepts too many regions")
	}
}

// TestBrokenMessages checks that truncated messages and other versions are errors that
// say so.
func TestBrokenMessages(t *testing.T) {
	hello, _ := lease.Hello{Receiver: "b"}.Append(nil)
	welcome, _ := lease.AppendWelcome(nil, layout, 64)
	for n := range hello {
		if _, err := lease.ReadHello(bytes.NewReader(hello[:n])); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("hello of %d bytes: %v", n, err)
		}
	}
	for n := range welcome {
		if _, _, err := lease.ReadWelcome(bytes.NewReader(welcome[:n])); err == nil {
			t.Errorf("a welcome of %d bytes is accepted", n)
		}
	}
	hello[4] = 2
	if _, err := lease.ReadHello(bytes.NewReader(hello)); err == nil || !strings.Contains(err.Error(), "version 2") || !strings.Contains(err.Error(), "version 1") {
		t.Errorf("hello of another version: %v", err)
	}
	small, _ := lease.AppendWelcome(nil, layout, 59) // the last block ends at 60
	if _, _, err := lease.ReadWelcome(bytes.NewReader(small)); err == nil {
		t.Error("a layout that leaves its pool is accepted")
	}
}

func FuzzHello(f *testing.F) {
	seed, _ := lease.Hello{Receiver: "b"}.Append(nil)
	f.Add(seed)
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bytes.NewReader(in)
		h, err := lease.ReadHello(r)
		if err != nil {
			return
		}
		out, err := h.Append(nil)
		if err != nil || !bytes.Equal(out, in[:len(in)-r.Len()]) {
			t.Errorf("%x decodes and encodes to %x, %v", in, out, err)
		}
	})
}

func FuzzWelcome(f *testing.F) {
	seed, _ := lease.AppendWelcome(nil, layout, 64)
	f.Add(seed)
	f.Add(lease.AppendRefusal(nil))
	f.Fuzz(func(t *testing.T, in []byte) {
		l, size, err := lease.ReadWelcome(bytes.NewReader(in))
		if err != nil {
			return
		}
		if err := l.Validate(size); err != nil {
			t.Error(err)
		}
		last := l.Regions[len(l.Regions)-1]
		if end := last.Offset + int64(l.Blocks-1)*last.Stride + last.Bytes; end < 0 || end > size {
			t.Errorf("%+v ends at %d of %d", l, end, size)
		}
	})
}
