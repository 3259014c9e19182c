package kvport

import (
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/internal/testkit"
	wire "github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// TestPullEndsBeforeTheReply: when the engine learns what became of a fetch, nothing writes to its
// slots any more.
func TestPullEndsBeforeTheReply(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, 0, nil)
	for id, wrong := range []uint32{0, 1} {
		w.setSpoil(func(q *wire.FetchKVAnswer) { q.Sums[0] += wrong })
		a.offer(handle, 3)
		if why := b.fetch(api.Fetch{ID: uint64(id), Blocks: []uint32{0}}); (why != "") != (wrong != 0) {
			t.Errorf("checksum off by %d: %q", wrong, why)
		}
		if n := w.open.Load(); n != 0 {
			t.Errorf("checksum off by %d: %d pulls are open", wrong, n)
		}
		a.read() // released
	}
}

// TestEngineRestartsBeforeExport: the offer of an engine that has gone gives no access to the memory of
// the next one.
func TestEngineRestartsBeforeExport(t *testing.T) {
	t.Parallel()
	w, a, _ := pair(t, 0, nil)
	a.offer(handle, 3)
	before, _ := w.all["r0"].Memory()
	w.beforePaths = func() {
		w.beforePaths = nil
		a.disconnect()
		a.connect()
		testkit.WaitFor(t, "the next memory", func() bool { m, ok := w.all["r0"].Memory(); return ok && m != before })
	}
	err := w.all["r0"].Serve(t.Context(), "r1", &wire.FetchKVRequest{Handle: unhex(handle), Digest: unhex(digest)}, func(*wire.FetchKVAnswer) error {
		t.Error("it is served")
		return nil
	})
	testkit.WantError(t, err, "no transport can serve the KV")
	if before.Hold() {
		t.Error("the former memory is kept mapped")
		before.Release()
	}
}

// TestTakeAtTheEndOfTheLease: a reader that comes between the end of the lease and its timer gets
// nothing.
func TestTakeAtTheEndOfTheLease(t *testing.T) {
	t.Parallel()
	s := newSession(nil, &api.Welcome{}, &transport.Memory{})
	s.offers[handle] = &offer{Offer: api.Offer{Handle: handle, Digest: digest}, until: time.Now()}
	if x, _, err := s.tryTake(handle, digest); x != nil || err != errNoOffer {
		t.Errorf("%+v, %v", x, err)
	}
}

// TestSilentEngineIsGivenUp: an engine that accepts and sends no welcome is given up.
func TestSilentEngineIsGivenUp(t *testing.T) {
	t.Parallel()
	e := newFrameEngine(t)
	newExchange(t).start("r0", e, 0, nil)
	e.accept()
	e.requireClosed("no welcome")
}
