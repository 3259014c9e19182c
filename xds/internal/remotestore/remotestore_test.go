package remotestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/xds/store"
)

// TestFollow: what differs is sent, at once and after signals and polls; while the server is silent, its
// changing reasons are sent once.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		version, fault, reads := store.Version("1"), error(nil), 0
		set := func(v store.Version, err error) {
			mu.Lock()
			defer mu.Unlock()
			version, fault = v, err
		}
		count := func() int {
			mu.Lock()
			defer mu.Unlock()
			return reads
		}
		changed, updates := make(chan struct{}, 1), make(chan store.Update)
		done := make(chan struct{})
		go func() {
			defer close(done)
			Follow(ctx, changed, time.Second, updates, func(context.Context) (store.Version, error) {
				mu.Lock()
				defer mu.Unlock()
				reads++
				return version, fault
			}, func() store.Object { return store.Object{} })
		}()
		expect := func(what string, want store.Version, failed bool) {
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
		expect("the first read", "1", false)
		silent("nothing has changed")
		time.Sleep(time.Second / 2) // between two polls
		set("2", nil)
		began := time.Now()
		changed <- struct{}{}
		if expect("a signal", "2", false); time.Since(began) > 0 {
			t.Errorf("after %v", time.Since(began))
		}
		set("2", fmt.Errorf("dial: %w", store.ErrUnavailable))
		expect("an outage", "2", true)
		set("2", fmt.Errorf("no answer: %w", store.ErrUnavailable))
		silent("another reason of the same outage")
		set("2", RefusedError{errors.New("forbidden")})
		expect("a refusal", "2", true)
		set("2", nil)
		expect("the end", "2", false)
		before := count()
		time.Sleep(10 * time.Second)
		if n := count() - before; n < 9 || n > 11 {
			t.Errorf("%d reads in ten seconds", n)
		}
		cancel()
		<-done
	})
}

func TestRefusedError(t *testing.T) {
	cause := errors.New("forbidden")
	err := fmt.Errorf("at x: %w", RefusedError{cause})
	if !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, cause) || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("%v", err)
	}
}

func TestCounters(t *testing.T) {
	data := []byte(strings.Repeat(`{"m":1}`, 1000))
	stored, err := CompressCounters("x", data)
	if err != nil || len(stored) >= len(data) {
		t.Fatalf("%d bytes, %v", len(stored), err)
	}
	if got, err := ExpandCounters("x", bytes.NewReader(stored)); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	for _, bad := range [][]byte{nil, {1, 2, 3}, stored[:len(stored)-3]} {
		if _, err := ExpandCounters("x", bytes.NewReader(bad)); err == nil || !strings.Contains(err.Error(), "counters in x") {
			t.Errorf("%d bytes: %v", len(bad), err)
		}
	}
}

func TestLastSave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if (LastSave{}).IsRecent() {
			t.Error("counters that were not saved yet are")
		}
		s := LastSave{At: time.Now(), Size: 128 << 10}
		for range 2 {
			if !s.IsRecent() {
				t.Error("a save of 128 KiB is forgotten before 8 s")
			}
			time.Sleep(7 * time.Second / 2)
		}
		time.Sleep(time.Second)
		if s.IsRecent() {
			t.Error("a save of 128 KiB still counts after 8 s")
		}
	})
}

func TestSplit(t *testing.T) {
	for text, want := range map[string]int{"": 1, "abc": 1, "abcd": 1, "abcde": 2, "abcdefgh": 2, "abcdefghi": 3} {
		parts := Split([]byte(text), 4)
		if len(parts) != want || string(bytes.Join(parts, nil)) != text {
			t.Errorf("%q: %q", text, parts)
		}
	}
}

// FuzzExpandCounters: whatever is stored, there is no panic, and what was compressed comes back.
func FuzzExpandCounters(f *testing.F) {
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		ExpandCounters("x", bytes.NewReader(data))
		stored, err := CompressCounters("x", data)
		if err != nil {
			return
		}
		if got, err := ExpandCounters("x", bytes.NewReader(stored)); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes come back as %d, %v", len(data), len(got), err)
		}
	})
}
