package proxy

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/httpserver"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/length"
)

// endless is a body that brings n bytes at a time.
type endless struct {
	n    int
	wait time.Duration
}

func (e endless) Read(p []byte) (int, error) {
	time.Sleep(e.wait)
	return min(e.n, len(p)), nil
}

// TestAttackBodyMemory checks that bodies never hold more memory together than they may:
// one that must be read is refused, another one is passed on without being kept.
func TestAttackBodyMemory(t *testing.T) {
	pool := &bufferPool{budget: httpserver.NewBudget(1 << 20)}
	big := newBody(endless{1 << 10, 0}, 16<<20, 16<<20, func() {}, pool)
	if n := pool.budget.Held(); n > maxFirstBuffer+1 {
		t.Errorf("the announcement of a body costs %d bytes", n)
	}
	if err := big.readAll(func([]byte) {}); !errors.Is(err, errNoRoom) {
		t.Errorf("a body beyond the budget: %v", err)
	}
	passed := newBody(endless{1 << 10, 0}, 16<<20, 16<<20, func() {}, pool)
	r := passed.newReader()
	if n, err := io.CopyN(io.Discard, r, 4<<20); err != nil || passed.repeatable() {
		t.Errorf("%d bytes passed, %v; repeatable %v", n, err, passed.repeatable())
	}
	if n := pool.budget.Held(); n > 1<<20 {
		t.Errorf("%d bytes are held", n)
	}
	r.Close()
	big.close()
	passed.close()
	testkit.WaitFor(t, "the release of all memory", func() bool { return pool.budget.Held() == 0 })
}

// TestNoMemoryForBody checks that without memory a body that must be read for its length is refused, and one whose size
// says it is passed on.
func TestNoMemoryForBody(t *testing.T) {
	f := newFleet(t, 4, nil)
	share := f.proxy.buffers.budget.Share()
	if !share.Resize(DefaultBodyMemory) {
		t.Fatal("the budget is in use")
	}
	defer share.Resize(0)
	body := prompt("m", 10_000)
	if _, s := f.see("POST", "/v1/chat/completions", "", bytes.NewReader(body)); s.Header.Get(length.TokensHeader) == "" || s.Bytes != len(body) {
		t.Errorf("of a stated size: %+v", s)
	}
	if resp, text := f.send("POST", "/v1/chat/completions", "", chunked{bytes.NewReader(body)}); resp.StatusCode != 503 {
		t.Errorf("of unknown size: status %d, %s", resp.StatusCode, text)
	}
}

// TestAttackSlowBody checks that a body which arrives byte by byte, and so is never idle,
// ends its request after one window, and that time in which nothing reads it is not the client's.
func TestAttackSlowBody(t *testing.T) {
	for _, c := range []struct {
		bytes int
		rate  int64 // configured; 0 for the default
		late  bool
	}{{1, 0, true}, {httpserver.WindowBytes / 8, 0, false}, {20, 10, false}, {20, 30, true}} {
		synctest.Test(t, func(t *testing.T) {
			b := newBody(endless{c.bytes, time.Second}, -1, 1<<30, func() {},
				&bufferPool{budget: httpserver.NewBudget(1 << 30), leastPace: httpserver.BytesAt(c.rate)})
			w, cause := watched(time.Hour)
			w.untilLate = b.untilLate
			r := b.newReader()
			w.start()
			time.Sleep(10 * httpserver.Window)
			if cause() != nil {
				t.Errorf("a body that was not read is late: %v", cause())
			}
			for begun := time.Now(); cause() == nil && time.Since(begun) < 3*httpserver.Window; {
				if _, err := r.Read(make([]byte, 64<<10)); err != nil {
					t.Fatal(err)
				}
			}
			w.stop()
			if errors.Is(cause(), errSlowBody) != c.late {
				t.Errorf("%d bytes a second: %v", c.bytes, cause())
			}
			r.Close()
			b.close()
		})
	}
}
