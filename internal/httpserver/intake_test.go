package httpserver

import (
	"sync"
	"sync/atomic"
	"testing"
)

func TestBudget(t *testing.T) {
	b := NewBudget(10)
	one, two := b.Share(), b.Share()
	for _, step := range []struct {
		share *Share
		size  int64
		fits  bool
		held  int64
	}{
		{&one, 6, true, 6}, {&two, 5, false, 6}, {&two, 4, true, 10}, {&two, 5, false, 10}, {&one, 7, false, 10},
		{&one, 1, true, 5}, {&two, 9, true, 10}, {&two, 0, true, 1}, {&one, 1, true, 1}, {&one, 11, false, 1},
	} {
		if fits := step.share.Resize(step.size); fits != step.fits || b.Held() != step.held {
			t.Errorf("%+v: fits %v, %d held", step, fits, b.Held())
		}
	}
	one.Release()
	one.Release()
	new(Share).Release() // of no budget: it holds nothing
	if b.Held() != 0 {
		t.Errorf("%d bytes are held by no share", b.Held())
	}
}

// TestBudgetIsNeverExceeded checks that shares that grow at the same time stay within the
// budget together.
func TestBudgetIsNeverExceeded(t *testing.T) {
	const limit, workers = 100, 8
	b := NewBudget(limit)
	var granted atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for n := range int64(1000) {
				s := b.Share()
				if !s.Resize(n % limit) {
					continue
				}
				if sum := granted.Add(n % limit); sum > limit {
					t.Errorf("%d bytes are granted", sum)
				}
				granted.Add(-(n % limit))
				s.Release()
			}
		})
	}
	wg.Wait()
	if b.Held() != 0 {
		t.Errorf("%d bytes are held by no share", b.Held())
	}
}

// TestPaceOfRate checks the pace at a rate of the operator's.
func TestPaceOfRate(t *testing.T) {
	p := Pace{Least: BytesAt(1000)}
	if _, changed := p.Arrived(9999, 5); changed {
		t.Error("9,999 bytes in 10 s are enough at 1,000 bytes per second")
	}
	if deadline, changed := p.Arrived(1, 6); !changed || deadline != 6+Window {
		t.Errorf("10,000 bytes in 10 s: until %d, changed %v", deadline, changed)
	}
	if BytesAt(0) != WindowBytes {
		t.Errorf("the default is %d bytes", BytesAt(0))
	}
}

func TestPace(t *testing.T) {
	const second = 1_000_000_000
	var p Pace
	for _, step := range []struct {
		now     int64
		bytes   int
		changed bool
		window  int64 // when the present window began
	}{
		{0, 0, false, 0}, {1, WindowBytes - 1, false, 0}, {9, 1, true, 9}, {9, 0, false, 9},
		{18, WindowBytes / 2, false, 9}, {18, 10 * WindowBytes, true, 18}, {27, WindowBytes - 1, false, 18},
	} {
		deadline, changed := p.Arrived(step.bytes, step.now*second)
		if changed != step.changed || deadline != step.window*second+Window {
			t.Errorf("%+v: until %d, changed %v", step, deadline, changed)
		}
	}
}
