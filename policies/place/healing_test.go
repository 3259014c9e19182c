package place

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// TestViewHeals loses, doubles, delays and reorders what a decider learns of a replica, whose ages are wrong by up to a
// second, and lets the decider start anew. Whatever it then believes of the replica is bounded, and after two reports
// that arrive, with what was sent since, it believes what a decider does that has had nothing but these. 10,000 random
// sequences with CASCADE_TEST_ALL=1.
func TestViewHeals(t *testing.T) {
	for seed := range uint64(testkit.Size(1000, 10_000)) {
		h := healing{rng: rand.New(rand.NewPCG(seed, 1)), view: newPriced()}
		for range 60 {
			h.disturb()
			if held := h.view.Held(h.now); held < 0 || held > 60*60*maxLength {
				t.Fatalf("seed %d: %d tokens are believed", seed, held)
			}
			if p := h.view.price(h.now, h.probe()); p < 0 || p > maxPrice {
				t.Fatalf("seed %d: a price of %d", seed, p)
			}
		}
		h.now += policies.Second // every delayed message has come
		fresh := newPriced()
		for range 2 {
			h.now += policies.Second
			s := h.state()
			h.view.Report(h.now, s)
			fresh.Report(h.now, s)
			for range h.rng.IntN(3) {
				h.now += policies.Micros(h.rng.Int64N(10_000))
				w := h.waiting()
				h.view.Send(h.now, w)
				fresh.Send(h.now, w)
			}
		}
		probe := h.probe()
		got, want := h.view.price(h.now, probe), fresh.price(h.now, probe)
		if math.Abs(float64(got-want)) > 1e-6*float64(want)+1 || h.view.Held(h.now) != fresh.Held(h.now) {
			t.Fatalf("seed %d: after two reports a price of %d and %d tokens, want %d and %d", seed, got, h.view.Held(h.now), want, fresh.Held(h.now))
		}
	}
}

// healing is a decider's view of a replica, and the faults of what it learns.
type healing struct {
	rng  *rand.Rand
	now  policies.Micros
	view *priced
	last *State // reported
}

const maxLength = 4000

// disturb makes one message arrive: too early or too late by up to a second, twice, or not at all.
func (h *healing) disturb() {
	h.now += policies.Micros(h.rng.Int64N(200_000))
	at := h.now + policies.Micros(h.rng.Int64N(int64(2*policies.Second))) - policies.Second
	w, s := h.waiting(), h.state()
	s.At = max(at, 0)
	times := h.rng.IntN(3) // lost, once, twice
	for range times {
		switch h.rng.IntN(5) {
		case 0, 1, 2:
			h.view.Send(max(at, 0), w)
		case 3:
			if h.last != nil && h.rng.IntN(3) == 0 {
				s = h.last // an earlier report, overtaken by a later one
			}
			h.view.Report(h.now, s)
			h.last = s
		default:
			if h.rng.IntN(20) == 0 {
				h.view = newPriced() // the decider starts anew
			}
		}
	}
}

// state returns a state of the replica, of the present.
func (h *healing) state() *State {
	s := &State{At: h.now, Iteration: testEngine.typical() * (0.5 + h.rng.Float64())}
	for range h.rng.IntN(30) {
		length := 1 + policies.Tokens(h.rng.Int64N(maxLength))
		s.Running = append(s.Running, Running{
			Count: 1, Length: length, Longest: length, Remaining: policies.Tokens(h.rng.Int64N(500)), Weight: h.rng.Float64(),
		})
	}
	for range h.rng.IntN(4) {
		s.Waiting = append(s.Waiting, h.waiting())
	}
	return s
}

func (h *healing) waiting() Waiting {
	w := Waiting{Length: 1 + policies.Tokens(h.rng.Int64N(maxLength)), Ready: h.now}
	return w.Weigh(1 + policies.Tokens(h.rng.Int64N(500)))
}

func (h *healing) probe() Waiting { return Waiting{Length: 1000, Ready: h.now}.Weigh(100) }

// TestLoadError checks that the error of what is believed of peers is measured: first reports are no error, and what
// ended or came unseen is.
func TestLoadError(t *testing.T) {
	b := movingPeers()
	report := func(now policies.Micros, tokens policies.Tokens) {
		b.SetPeerState(now, "b", &State{At: now, Running: []Running{
			{Count: 1, Length: tokens, Longest: tokens, Remaining: 1000, Weight: 0.001},
		}})
	}
	b.SetPeerState(0, "long", &State{})
	if got := b.LoadError(); got != 0 {
		t.Errorf("an error of %v, nothing runs", got)
	}
	report(1, 1000) // "b" was known to be idle
	if got := b.LoadError(); got < 0.99 || got > 1.01 {
		t.Errorf("an error of %v where nothing was known of all that runs", got)
	}
	for range 500 {
		report(1, 1000)
	}
	if got := b.LoadError(); got > 0.01 {
		t.Errorf("an error of %v where all is as believed", got)
	}
}
