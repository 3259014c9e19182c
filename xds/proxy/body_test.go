package proxy

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/cascadeinfer/cascade/internal/httpserver"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

func bodyOf(src io.Reader, size, limit int64) *body {
	return newBody(src, size, limit, func() {}, &bufferPool{budget: httpserver.NewBudget(1 << 30)})
}

// TestBodyAgain checks that an attempt sends the whole body, however much the previous
// one read before it was abandoned.
func TestBodyAgain(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for range 500 {
		want := make([]byte, r.IntN(20000))
		for i := range want {
			want[i] = byte(r.Uint32())
		}
		limit := int64(len(want) + r.IntN(2)*r.IntN(1000))
		b := bodyOf(iotest.HalfReader(bytes.NewReader(want)), []int64{-1, int64(len(want))}[r.IntN(2)], limit)
		for range r.IntN(4) {
			a := b.newReader()
			io.CopyN(io.Discard, a, int64(r.IntN(len(want)+1)))
			a.Close()
		}
		last := b.newReader()
		b.commit()
		if got, err := io.ReadAll(last); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes, limit %d: got %d, %v", len(want), limit, len(got), err)
		}
		last.Close()
		if b.users != 0 || b.held != nil {
			t.Fatalf("%d users hold %d bytes after the end", b.users, len(b.held))
		}
	}
}

// TestBodyOutgrows checks that a body larger than the limit is sent, but only once.
func TestBodyOutgrows(t *testing.T) {
	want := strings.Repeat("x", 10000)
	b := bodyOf(strings.NewReader(want), -1, 5000)
	first := b.newReader()
	if got, err := io.ReadAll(first); err != nil || string(got) != want {
		t.Fatalf("got %d, %v", len(got), err)
	}
	if b.repeatable() {
		t.Error("a body beyond the limit claims to be repeatable")
	}
	if _, err := io.ReadAll(b.newReader()); !errors.Is(err, errNotRepeated) {
		t.Errorf("a second reading: %v", err)
	}
}

func TestBodyFill(t *testing.T) {
	for _, size := range []int64{-1, 10000} {
		var seen bytes.Buffer
		b := bodyOf(strings.NewReader(strings.Repeat("x", 10000)), size, 10000)
		if err := b.readAll(func(p []byte) { seen.Write(p) }); err != nil || seen.Len() != 10000 {
			t.Errorf("fill saw %d: %v", seen.Len(), err)
		}
		if n, known := b.size(); !known || n != 10000 {
			t.Errorf("size is %d, %v", n, known)
		}
		b = bodyOf(strings.NewReader(strings.Repeat("x", 10001)), size, 10000)
		if err := b.readAll(func([]byte) {}); !errors.Is(err, errTooLarge) {
			t.Errorf("one byte over: %v", err)
		}
	}
	broken := errors.New("broken")
	b := bodyOf(iotest.ErrReader(broken), -1, 100)
	if err := b.readAll(func([]byte) {}); !errors.Is(err, broken) || b.failure() == nil || b.repeatable() {
		t.Errorf("a broken body: %v", err)
	}
}

// TestBodyStaleReader checks the case that the transport of a failed attempt still
// reads while the next attempt begins: the next attempt also sends the bytes that the
// stale reader reads.
func TestBodyStaleReader(t *testing.T) {
	want := strings.Repeat("0123456789", 3000)
	for range 50 {
		pr, pw := io.Pipe()
		b := bodyOf(pr, -1, 1<<20)
		stale := b.newReader()
		var wg sync.WaitGroup
		wg.Go(func() { io.Copy(io.Discard, stale) })
		wg.Go(func() {
			for rest := want; rest != ""; {
				n := min(len(rest), 777)
				io.WriteString(pw, rest[:n])
				rest = rest[n:]
			}
			pw.Close()
		})
		stale.Close()
		next := b.newReader()
		got, err := io.ReadAll(next)
		if err != nil || string(got) != want {
			t.Fatalf("got %d of %d bytes, %v", len(got), len(want), err)
		}
		next.Close()
		b.commit()
		wg.Wait()
	}
}

// TestBodyStaleWish checks that what an abandoned reader was waiting for costs the next one no
// bytes: neither when the memory is used up, nor when the answer has begun.
func TestBodyStaleWish(t *testing.T) {
	for name, test := range map[string]struct {
		budget int64
		commit bool
	}{"no memory": {minBuffer, false}, "committed": {1 << 30, true}} {
		t.Run(name, func(t *testing.T) {
			want := strings.Repeat("0123456789", 3000)
			b := newBody(strings.NewReader(want), -1, 1<<20, func() {},
				&bufferPool{budget: httpserver.NewBudget(test.budget)})
			stale := b.newReader()
			begun := make([]byte, minBuffer)
			if _, err := io.ReadFull(stale, begun); err != nil {
				t.Fatal(err)
			}
			if !b.repeatable() {
				t.Fatal("what was read is not kept")
			}
			b.mu.Lock() // fill has not seen yet that the stale reader waits
			b.wanted = true
			b.keep = !test.commit
			b.changed.Broadcast()
			b.users++
			b.last = &bodyReader{b: b}
			r := b.last
			b.mu.Unlock()
			testkit.WaitFor(t, "fill answers the stale reader's wish", func() bool {
				b.mu.Lock()
				defer b.mu.Unlock()
				return !b.wanted
			})
			stale.Close()
			if got, err := io.ReadAll(r); err != nil || string(got) != want {
				t.Errorf("the next attempt sends %d of %d bytes: %v", len(got), len(want), err)
			}
			r.Close()
		})
	}
}
