package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// scripted is a backend whose reads fail, and are counted.
type scripted struct {
	Backend
	mu    sync.Mutex
	fault error
	reads int
}

func (b *scripted) ReadRoot(ctx context.Context) (Root, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reads++; b.fault != nil {
		return Root{}, b.fault
	}
	return b.Backend.ReadRoot(ctx)
}

// TestFollowUnseenWrite: what was sent is sent again when it is back after a write that no read saw, such as
// that of a first plan which an operator removes at once.
func TestFollowUnseenWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		m := NewMemory().(*memory)
		b := &scripted{Backend: m}
		s := New(b)
		updates := s.Watch(ctx)
		if u := <-updates; u.Version != "" {
			t.Errorf("the first read: %+v", u)
		}
		b.mu.Lock() // no read passes
		testkit.Must(s.CompareAndSwap(ctx, "", Object{}))
		m.root = nil
		b.mu.Unlock()
		for _, want := range []int{1, 0} {
			n := 0
			select {
			case u := <-updates:
				if n++; u.Version != "" || u.Err != nil {
					t.Errorf("%+v", u)
				}
			case <-time.After(5 * time.Second):
			}
			if n != want {
				t.Errorf("%d updates, want %d", n, want)
			}
		}
		cancel()
		for range updates {
		}
	})
}

// TestFollow: what differs is sent, at once and after signals and polls; while the server is silent, its
// changing reasons are sent once.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		b := &scripted{Backend: NewMemory()}
		fail := func(err error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.fault = err
		}
		count := func() int {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.reads
		}
		s := New(b)
		updates := s.Watch(ctx)
		expect := func(what string, want Version, failed bool) {
			t.Helper()
			select {
			case u := <-updates:
				if u.Version != want || (u.Err != nil) != failed {
					t.Errorf("%s: %+v", what, u)
				}
			case <-time.After(time.Minute):
				t.Fatalf("%s: nothing is sent", what)
			}
		}
		silent := func(what string) {
			t.Helper()
			select {
			case u := <-updates:
				t.Errorf("%s: %+v is sent", what, u)
			case <-time.After(5 * time.Second):
			}
		}
		expect("the first read", "", false)
		silent("nothing has changed")
		time.Sleep(time.Second / 2) // between two polls
		began := time.Now()
		if _, err := s.CompareAndSwap(ctx, "", Object{}); err != nil {
			t.Fatal(err)
		}
		if expect("a signal", "1", false); time.Since(began) > 0 {
			t.Errorf("after %v", time.Since(began))
		}
		fail(fmt.Errorf("dial: %w", ErrUnavailable))
		expect("an outage", "1", true)
		fail(fmt.Errorf("no answer: %w", ErrUnavailable))
		silent("another reason of the same outage")
		fail(RefusedError{errors.New("forbidden")})
		expect("a refusal", "1", true)
		fail(nil)
		expect("the end", "1", false)
		before := count()
		time.Sleep(10 * time.Second)
		if n := count() - before; n < 9 || n > 11 {
			t.Errorf("%d reads in ten seconds", n)
		}
		cancel()
		for range updates {
		}
	})
}

func TestRefusedError(t *testing.T) {
	cause := errors.New("forbidden")
	err := fmt.Errorf("at x: %w", RefusedError{cause})
	if !errors.Is(err, ErrUnavailable) || !errors.Is(err, cause) || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("%v", err)
	}
}

// TestRetry: an attempt that hangs is given up early, and the last error is the one that says most.
func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		var took []time.Duration
		tries := 0
		err := Retry(ctx, func(error) bool { return true }, func(ctx context.Context) error {
			if tries++; tries == 2 {
				return errors.New("refused")
			}
			began := time.Now()
			<-ctx.Done()
			took = append(took, time.Since(began))
			return ctx.Err()
		})
		if err == nil || err.Error() != "refused" || len(took) < 3 || took[0] != 800*time.Millisecond || took[1] > 600*time.Millisecond {
			t.Errorf("%v after %v", err, took)
		}
		tries = 0
		err = Retry(ctx, func(error) bool { return false }, func(context.Context) error { tries++; return errors.New("final") })
		if err == nil || tries != 1 {
			t.Errorf("%v after %d attempts", err, tries)
		}
	})
}

// TestFileWatchHangs checks that a watch of a file system which hangs ends with its context, and leaves nothing once
// the file system answers.
func TestFileWatchHangs(t *testing.T) {
	f := &file{dir: t.TempDir()}
	ctx, cancel := context.WithCancel(t.Context())
	asked, answer, ended := make(chan *fsnotify.Watcher), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		f.watchRoot(ctx, nil, func(w *fsnotify.Watcher, _ string) error {
			asked <- w
			<-answer
			return nil
		})
	}()
	w := <-asked
	cancel()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the watch waits for the file system")
	}
	close(answer)
	testkit.WaitFor(t, "the watcher is closed", func() bool { return errors.Is(w.Add(f.dir), fsnotify.ErrClosed) })
}
