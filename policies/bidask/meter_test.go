package bidask

import (
	"testing"

	"github.com/cascadeinfer/cascade/policies"
)

func TestMeter(t *testing.T) {
	var m throughputMeter
	if m.rate() != 0 {
		t.Error("a rate from nothing")
	}
	second := policies.Second
	m.begin(0)
	m.end(second, 1000)
	if got := m.rate(); got != 1000 {
		t.Errorf("one transfer: %d", got)
	}
	// Two concurrent transfers double the rate; idle time does not count.
	at := 10 * second
	for range 20 {
		m.begin(at)
		m.begin(at)
		at += second
		m.end(at, 1000)
		m.end(at, 1000)
		at += 5 * second
	}
	if got := m.rate(); got < 1900 || got > 2300 {
		t.Errorf("two at once: %d", got)
	}
	// Failed transfers take time and transfer no tokens.
	for range 5 {
		m.begin(at)
		at += second
		m.end(at, 0)
	}
	if got := m.rate(); got <= 0 || got > 1700 {
		t.Errorf("failures: %d", got)
	}
	// The latest transfers count most.
	for range 3 * recentTransfers {
		m.begin(at)
		at += second
		m.end(at, 10_000)
	}
	if got := m.rate(); got < 8000 {
		t.Errorf("ten times as fast: %d", got)
	}
}
