package policyhost

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/slothost"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeHost implements Slots. It loads every module.
type fakeHost struct {
	mu      sync.Mutex
	loaded  map[lifecycle.Digest]int // how often each was loaded
	wanted  map[lifecycle.Kind][]lifecycle.Generation
	applied int
	full    bool // whether the disk is full
	back    []lifecycle.Generation
}

func newHost() *fakeHost {
	return &fakeHost{loaded: make(map[lifecycle.Digest]int), wanted: make(map[lifecycle.Kind][]lifecycle.Generation)}
}

func (h *fakeHost) Check(w lifecycle.SlotSpec) error {
	if len(w.RolledBack) > 1 {
		return errors.New("too much")
	}
	return nil
}

func (h *fakeHost) Missing(w lifecycle.SlotSpec) (out []lifecycle.Digest) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range w.Candidates {
		if h.loaded[c.SHA256] == 0 {
			out = append(out, c.SHA256)
		}
	}
	return out
}

func (h *fakeHost) Apply(w lifecycle.SlotSpec) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.applied++
	if h.full {
		return fmt.Errorf("slot %s: %w", w.Kind, slothost.ErrNotWritten)
	}
	h.wanted[w.Kind] = nil
	for _, c := range w.Candidates {
		h.wanted[w.Kind] = append(h.wanted[w.Kind], c.Generation)
		if c.Module != nil {
			h.loaded[c.SHA256]++
		}
	}
	return nil
}

func (h *fakeHost) RollBack(w lifecycle.SlotSpec) {
	for _, e := range w.RolledBack {
		h.back = append(h.back, e.Generation)
	}
}

func (h *fakeHost) Status() []lifecycle.SlotStatus {
	return []lifecycle.SlotStatus{{Kind: lifecycle.Place, Active: 3, Modules: []lifecycle.Status{
		{Generation: 3, Phase: lifecycle.Active, SHA256: lifecycle.Sum(nil), Calls: 7}, {Generation: 1, Phase: lifecycle.Rejected, Reason: "traps"},
	}}}
}

func (h *fakeHost) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (h *fakeHost) has(bytes string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.loaded[sha256.Sum256([]byte(bytes))]
}

// shop serves modules to fetches.
type shop struct {
	mu    sync.Mutex
	there map[lifecycle.Digest][]byte
	asked map[lifecycle.Digest]int
}

func (s *shop) put(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.there[sha256.Sum256([]byte(text))] = []byte(text)
}

func (s *shop) fetch(_ context.Context, d lifecycle.Digest) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[d]++
	b, ok := s.there[d]
	if !ok {
		return nil, errors.New("not here")
	}
	return b, nil
}

// times returns how often a module was requested.
func (s *shop) times(text string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[sha256.Sum256([]byte(text))]
}

func want(k lifecycle.Kind, modules ...string) lifecycle.SlotSpec {
	w := lifecycle.SlotSpec{Kind: k}
	for i, m := range modules {
		w.Candidates = append(w.Candidates, lifecycle.Candidate{Generation: lifecycle.Generation(i + 1), SHA256: sha256.Sum256([]byte(m))})
	}
	return w
}

// start runs a node until the test's bubble ends.
func start(t *testing.T, h *fakeHost, s *shop) *Node {
	t.Helper()
	n := NewNode(NodeConfig{Slots: h, Fetch: s.fetch})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- n.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return n
}

// bubble runs a test in a synctest bubble, with a host and modules to fetch.
func bubble(t *testing.T, test func(t *testing.T, h *fakeHost, s *shop)) {
	synctest.Test(t, func(t *testing.T) { test(t, newHost(), newShop()) })
}

func newShop() *shop {
	return &shop{there: make(map[lifecycle.Digest][]byte), asked: make(map[lifecycle.Digest]int)}
}

// TestFetches checks that a module that two slots want is fetched once, and that an
// unavailable module is loaded once it becomes available.
func TestFetches(t *testing.T) {
	bubble(t, func(t *testing.T, h *fakeHost, s *shop) {
		s.put("a")
		n := start(t, h, s)
		n.SetSpec(want(lifecycle.BidQuote, "a"))
		n.SetSpec(want(lifecycle.BidSelect, "a", "b"))
		synctest.Wait()
		if h.has("a") == 0 || s.times("a") != 1 || h.has("b") != 0 {
			t.Errorf("loaded %v, asked %d times", h.loaded, s.times("a"))
		}
		time.Sleep(time.Hour)
		if asked := s.times("b"); asked < 240 || asked > 250 {
			t.Errorf("asked %d times in an hour", asked)
		}
		s.put("b")
		time.Sleep(maxBackoff)
		synctest.Wait()
		if h.has("b") != 1 {
			t.Errorf("not loaded: %v", h.loaded)
		}
		before := s.times("a") + s.times("b")
		time.Sleep(time.Hour)
		if s.times("a")+s.times("b") != before {
			t.Error("asked for what is there")
		}
	})
}

// TestWithdrawnWhileFetching checks that a spec without the module being fetched takes
// effect at once and ends the fetch. Until then, the status shows the fetch and its
// last error.
func TestWithdrawnWhileFetching(t *testing.T) {
	bubble(t, func(t *testing.T, h *fakeHost, s *shop) {
		s.put("a")
		n := start(t, h, s)
		n.SetSpec(want(lifecycle.Place, "a", "b"))
		synctest.Wait()
		if !slices.Equal(h.wanted[lifecycle.Place], []lifecycle.Generation{1, 2}) {
			t.Error(h.wanted)
		}
		lives := func() (out string) {
			for _, l := range n.Status()[0].Modules {
				out += fmt.Sprintf("%d %s %s; ", l.Generation, l.Phase, l.Reason)
			}
			return out
		}
		if got := lives(); got != "1 rejected traps; 2 fetching not here; 3 active ; " {
			t.Error(got)
		}
		n.SetSpec(want(lifecycle.Place, "a"))
		synctest.Wait()
		if !slices.Equal(h.wanted[lifecycle.Place], []lifecycle.Generation{1}) {
			t.Error(h.wanted)
		}
		if got := lives(); got != "1 rejected traps; 3 active ; " {
			t.Error(got)
		}
		asked := s.times("b")
		time.Sleep(time.Hour)
		if now := s.times("b"); now != asked {
			t.Errorf("still asked for: %d times, then %d", asked, now)
		}
	})
}

// TestForged checks that bytes with another digest are not used.
func TestForged(t *testing.T) {
	bubble(t, func(t *testing.T, h *fakeHost, s *shop) {
		s.there[sha256.Sum256([]byte("a"))] = []byte("another")
		start(t, h, s).SetSpec(want(lifecycle.Place, "a"))
		time.Sleep(time.Minute)
		if h.has("a") != 0 || h.has("another") != 0 {
			t.Error("loaded")
		}
	})
}

// TestFullDisk checks that a spec that could not be saved is retried until it is, and that
// the status shows the error meanwhile.
func TestFullDisk(t *testing.T) {
	bubble(t, func(t *testing.T, h *fakeHost, s *shop) {
		h.full = true
		s.put("a")
		n := start(t, h, s)
		n.SetSpec(want(lifecycle.Place, "a"))
		time.Sleep(time.Minute)
		if h.has("a") != 0 || n.Status()[0].Refused == "" {
			t.Errorf("%+v", n.Status()[0])
		}
		h.mu.Lock()
		h.full = false
		h.mu.Unlock()
		time.Sleep(time.Minute)
		if h.has("a") == 0 || n.Status()[0].Refused != "" {
			t.Errorf("%+v", n.Status()[0])
		}
		h.mu.Lock()
		before := h.applied
		h.mu.Unlock()
		time.Sleep(time.Hour)
		if h.applied != before {
			t.Error("applied though it is there")
		}
	})
}

func TestStatus(t *testing.T) {
	n := NewNode(NodeConfig{Slots: newHost(), Fetch: newShop().fetch})
	bad := lifecycle.SlotSpec{Kind: lifecycle.Place, RolledBack: []lifecycle.RolledBackModule{{Generation: 4}, {Generation: 5}}}
	if n.Check(bad) == nil {
		t.Fatal("accepted")
	}
	if back := n.slots.(*fakeHost).back; !slices.Equal(back, []lifecycle.Generation{4, 5}) {
		t.Errorf("what is rolled back by a want that is refused: %v", back)
	}
	s := n.Status()
	if len(s) != 1 || s[0].Refused != "too much" || s[0].Active != 3 || len(s[0].Modules) != 2 || s[0].Modules[0].Reason != "traps" || s[0].Modules[1].Calls != 7 || len(s[0].Modules[1].Sha256) != 32 {
		t.Errorf("%v", s)
	}
	if err := n.Check(lifecycle.SlotSpec{Kind: lifecycle.Place}); err != nil || n.Status()[0].Refused != "" {
		t.Error(err, n.Status())
	}
	if lifecycle.Kind("configure").Known() {
		t.Error("configure decides nothing")
	}
}
