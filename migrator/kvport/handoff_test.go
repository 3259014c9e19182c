package kvport

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/internal/testkit"
	wire "github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// pair runs two engines with migrators r0 and r1, which are connected.
func pair(t *testing.T, lease time.Duration, faults *transporttest.Faults) (w *exchange, a, b *frameEngine) {
	t.Helper()
	w, a, b = newExchange(t), newFrameEngine(t), newFrameEngine(t)
	w.start("r0", a, lease, nil)
	w.start("r1", b, 0, faults)
	a.connect()
	b.connect()
	w.waitForEngines()
	return w, a, b
}

// waitForEngines waits until all engines are available.
func (w *exchange) waitForEngines() {
	w.t.Helper()
	testkit.WaitFor(w.t, "the engines are available", func() bool {
		for _, m := range w.all {
			if _, ok := m.Memory(); !ok || !canExport(m.set) {
				return false
			}
		}
		return true
	})
}

// fetch asks for blocks of the offer of r0, and returns why they do not come.
func (e *frameEngine) fetch(f api.Fetch) string {
	e.t.Helper()
	if f.Handle == "" {
		f.Handle = handle
	}
	if f.Digest == "" {
		f.Digest = digest
	}
	if f.Holder == "" {
		f.Holder = "r0"
	}
	e.send(api.Frame{Fetch: &f})
	got := e.read().Fetched
	if got == nil || got.ID != f.ID {
		e.t.Fatalf("the answer is %+v", got)
	}
	return got.Error
}

// TestFetch moves blocks from one engine to another: those that are wanted, and no others. Then the
// holder's engine gets its slots back, and no replica gets the blocks again.
func TestFetch(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, 0, nil)
	a.offer(handle, 3, 1, 2)
	if why := b.fetch(api.Fetch{ID: 9, First: 1, Blocks: []uint32{7, 0}}); why != "" {
		t.Fatal(why)
	}
	for slot, want := range map[uint32]byte{7: 2, 0: 3, 1: 0, 6: 0} {
		if got := b.slot(slot); !bytes.Equal(got, bytes.Repeat([]byte{want}, slotBytes)) {
			t.Errorf("slot %d has %v…", slot, got[:4])
		}
	}
	if f := a.read(); f.Released == nil || f.Released.Handle != handle {
		t.Errorf("the holder's engine is sent %s", f.Name())
	}
	if why := b.fetch(api.Fetch{ID: 10, Blocks: []uint32{7, 0, 1}}); why != errNoOffer.Error() {
		t.Errorf("again: %q", why)
	}
	testkit.WaitFor(t, "the counters", func() bool {
		return w.all["r0"].Stats() == Stats{Offered: 1, Taken: 1, Sessions: 1} && w.all["r1"].Stats() == Stats{Fetched: 1, Failed: 1, Sessions: 1}
	})
}

// TestFetchBeforeOffer: an engine names an offer before it makes it.
func TestFetchBeforeOffer(t *testing.T) {
	t.Parallel()
	_, a, b := pair(t, 0, nil)
	b.send(api.Frame{Fetch: &api.Fetch{ID: 1, Holder: "r0", Handle: handle, Digest: digest, Blocks: []uint32{0}}})
	time.Sleep(20 * time.Millisecond) // the fetch has arrived
	a.offer(handle, 5)
	if f := b.read().Fetched; f.Error != "" || b.slot(0)[0] != 6 {
		t.Errorf("%q, slot 0 has %v…", f.Error, b.slot(0)[:4])
	}
}

// TestRefused asks for what is not there, or not for this replica.
func TestRefused(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, 0, nil)
	a.offer(handle, 3, 1)
	full := strings.Repeat("ab", 16)
	a.send(api.Frame{Offer: &api.Offer{Handle: full, Error: "the staging memory is full"}})
	id, begun := uint64(0), time.Now()
	for want, f := range map[string]api.Fetch{
		errDigest.Error():            {Digest: strings.Repeat("00", 32), Blocks: []uint32{0, 1}},
		"the staging memory is full": {Handle: full, Blocks: []uint32{0}},
		"no replica r5":              {Holder: "r5", Blocks: []uint32{0}},
		"the holder is this replica": {Holder: "r1", Blocks: []uint32{0}},
		errNoOffer.Error():           {Handle: strings.Repeat("00", 16), Blocks: []uint32{0}},
	} {
		id++
		f.ID = id
		if why := b.fetch(f); why != want {
			t.Errorf("%q, want %q", why, want)
		}
	}
	if took := time.Since(begun); took > fetchTimeout*4/5 {
		t.Errorf("the replies took %v: an offer is awaited for %v", took, offerTimeout)
	}
	// It is still there for who knows it.
	if why := b.fetch(api.Fetch{ID: 100, Blocks: []uint32{0, 1}}); why != "" {
		t.Error(why)
	}
	serve := func(q *wire.FetchKVRequest) error {
		return w.all["r0"].Serve(t.Context(), "r1", q, func(*wire.FetchKVAnswer) error { return nil })
	}
	testkit.WantError(t, serve(&wire.FetchKVRequest{Handle: make([]byte, 15), Digest: make([]byte, 32)}), "a handle of 16 bytes")
	testkit.WantError(t, serve(&wire.FetchKVRequest{Handle: make([]byte, 16), Digest: make([]byte, 33)}), "a handle of 16 bytes")
}

// TestTooManyOffers: an engine whose offers no replica takes keeps its connection. What is one offer
// too many is released at once.
func TestTooManyOffers(t *testing.T) {
	t.Parallel()
	w, a, _ := pair(t, 0, nil)
	for i := range maxOffers {
		a.send(api.Frame{Offer: &api.Offer{Handle: fmt.Sprintf("%032x", i), Error: "the staging memory is full"}})
	}
	a.send(api.Frame{Offer: &api.Offer{Handle: strings.Repeat("ab", 16), Error: "the staging memory is full"}})
	a.offer(handle, 3)
	if f := a.read(); f.Released == nil || f.Released.Handle != handle {
		t.Errorf("the engine is sent %s", f.Name())
	}
	if s := w.all["r0"].Stats(); s.Expired != 1 || s.Sessions != 1 || s.Offered != maxOffers+2 {
		t.Errorf("%+v", s)
	}
}

// TestLongError: the reason why a fetch failed is cut, between two runes, to what a frame may have.
func TestLongError(t *testing.T) {
	t.Parallel()
	e := newFrameEngine(t)
	conn := testkit.Must(net.DialUnix("unix", nil, e.listen.Addr().(*net.UnixAddr)))
	defer conn.Close()
	e.conn = testkit.Must(e.listen.AcceptUnix())
	for start, kept := range map[string]string{"x": "x", "\xff!": "?!"} {
		newSession(api.NewConn(conn), &api.Welcome{}, &transport.Memory{}).reply(3, errors.New(start+strings.Repeat("é", api.MaxText)))
		if f := e.read().Fetched; f.ID != 3 || f.Error != kept+strings.Repeat("é", (api.MaxText-len(kept))/2) {
			t.Errorf("%+v", f)
		}
	}
}

// TestNoBlockWanted: a reader that wants no block ends the offer, so that its slots are free again.
func TestNoBlockWanted(t *testing.T) {
	t.Parallel()
	_, a, b := pair(t, 0, nil)
	a.offer(handle, 3, 1)
	if why := b.fetch(api.Fetch{ID: 1, First: 2, Blocks: []uint32{0}}); !strings.Contains(why, "no block is wanted") {
		t.Error(why)
	}
	if f := a.read(); f.Released == nil {
		t.Errorf("the holder's engine is sent %s", f.Name())
	}
}

// TestBadAnswers changes what the holder answers: nothing of it is taken for success.
func TestBadAnswers(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, 0, nil)
	id := uint64(0)
	for want, spoil := range map[string]func(*wire.FetchKVAnswer){
		"offers 0 blocks and 0 checksums, not the 2":     func(q *wire.FetchKVAnswer) { q.Blocks, q.Sums = nil, nil },
		"offers 1 blocks and 1 checksums, not the 2":     func(q *wire.FetchKVAnswer) { q.Blocks, q.Sums = q.Blocks[:1], q.Sums[:1] },
		"offers 2 blocks and 3 checksums, not the 2":     func(q *wire.FetchKVAnswer) { q.Sums = append(q.Sums, 1) },
		"2 blocks do not have the checksums of the plan": func(q *wire.FetchKVAnswer) { q.Sums[0]++; q.Sums[1]++ },
		"asked for block 4, which was not announced":     func(q *wire.FetchKVAnswer) { q.Blocks[0] = 4 }, // one that was not offered
		"copies block 99":               func(q *wire.FetchKVAnswer) { q.Blocks[0] = 99 },
		"no transport in common":        func(q *wire.FetchKVAnswer) { q.Offers = nil },
		"ticket of 15 bytes":            func(q *wire.FetchKVAnswer) { q.Offers[0].Ticket = q.Offers[0].Ticket[1:] },
		"17 offers: must be at most 16": func(q *wire.FetchKVAnswer) { q.Offers = make([]*wire.Offer, 17) },
	} {
		w.setSpoil(spoil)
		id++
		a.offer(handle, 3, 1)
		if why := b.fetch(api.Fetch{ID: id, Blocks: []uint32{0, 1}}); !strings.Contains(why, want) {
			t.Errorf("%q, want %q", why, want)
		}
		a.read() // released
	}
	if s := w.all["r1"].Stats(); s.Fetched != 0 || s.Corrupt != 3*2 {
		t.Errorf("%+v", s)
	}
}

// TestCorruptBlocks: blocks that arrive wrong are pulled again, and they alone.
func TestCorruptBlocks(t *testing.T) {
	t.Parallel()
	faults := &transporttest.Faults{}
	faults.Set(transporttest.Fault{At: transporttest.AtPull, Block: 1, Kind: transporttest.Corrupt})
	w, a, b := pair(t, 0, faults)
	a.offer(handle, 3, 1, 2)
	if why := b.fetch(api.Fetch{ID: 1, Blocks: []uint32{0, 1, 2}}); why != "" {
		t.Error(why)
	}
	if b.slot(0)[0] != 4 || b.slot(1)[0] != 2 || b.slot(2)[0] != 3 || w.all["r1"].Stats().Corrupt != 1 {
		t.Errorf("%v, %+v", b.memory[:3*slotBytes], w.all["r1"].Stats())
	}
}

// TestLease: an offer that no replica takes is over after its lease, and one that is being read, too:
// its slots go back to the engine in both cases, after the reader's grant was revoked.
func TestLease(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, 100*time.Millisecond, nil)
	a.offer(handle, 3)
	if f := a.read(); f.Released == nil || f.Released.Handle != handle {
		t.Fatalf("the engine is sent %s", f.Name())
	}
	if s := w.all["r0"].Stats(); s.Expired != 1 || s.Taken != 0 {
		t.Errorf("%+v", s)
	}
	if why := b.fetch(api.Fetch{ID: 1, Blocks: []uint32{0}}); why != errNoOffer.Error() {
		t.Errorf("after it: %q", why)
	}
	for taken := false; !taken; { // on a busy host the lease may end before the reader comes
		a.offer(handle, 3)
		err := w.all["r0"].Serve(t.Context(), "r1", &wire.FetchKVRequest{Handle: unhex(handle), Digest: unhex(digest)}, func(q *wire.FetchKVAnswer) error {
			if taken = true; len(q.GetOffers()) != 1 {
				t.Errorf("%d offers", len(q.GetOffers()))
			}
			return nil
		})
		if taken {
			testkit.WantError(t, err, errLeaseEnd.Error())
		} else {
			a.read() // released
		}
	}
	if f := a.read(); f.Released == nil {
		t.Errorf("the engine is sent %s", f.Name())
	}
	if s := w.all["r0"].Stats(); s.Expired+s.Taken != s.Offered || s.Taken != 1 {
		t.Errorf("%+v", s)
	}
}

// TestReaderLeaves: once the engine has its slots back, the reader's tickets are void, although the
// lease lasts.
func TestReaderLeaves(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, 0, nil)
	a.offer(handle, 3)
	ctx, cancel := context.WithCancel(t.Context())
	var offers []*wire.Offer
	testkit.NoError(t, w.all["r0"].Serve(ctx, "r1", &wire.FetchKVRequest{Handle: unhex(handle), Digest: unhex(digest)}, func(q *wire.FetchKVAnswer) error {
		offers = q.Offers
		cancel()
		return nil
	}))
	if f := a.read(); f.Released == nil {
		t.Fatalf("the engine is sent %s", f.Name())
	}
	w.setSpoil(func(q *wire.FetchKVAnswer) { q.Offers = offers })
	a.offer(handle, 3)
	if why := b.fetch(api.Fetch{ID: 1, Blocks: []uint32{0}}); !strings.Contains(why, transport.ErrRefused.Error()) {
		t.Errorf("with the tickets of the former offer: %q", why)
	}
}

// TestEngineEnds ends the connections while blocks are wanted. Everything ends, and begins anew with
// the next connection, which knows nothing of the former.
func TestEngineEnds(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, 0, nil)
	if c := w.all["r0"].KVConnector(); c != (engineinfo.KVConnector{Presence: engineinfo.Present, Name: "CascadeConnector", Layout: "f"}) {
		t.Errorf("%+v", c)
	}
	a.offer(handle, 3)
	testkit.WaitFor(t, "the offer", func() bool { return w.all["r0"].Stats().Offered == 1 })
	ended := make(chan error, 1)
	reading := make(chan struct{})
	go func() {
		ended <- w.all["r0"].Serve(context.Background(), "r1", &wire.FetchKVRequest{Handle: unhex(handle), Digest: unhex(digest)}, func(*wire.FetchKVAnswer) error { close(reading); return nil })
	}()
	testkit.WaitForEvent(t, "a reader", reading)
	a.disconnect()
	testkit.WantError(t, <-ended, errLeaseEnd.Error())
	testkit.WaitFor(t, "the engine is away", func() bool { _, ok := w.all["r0"].Memory(); return !ok })
	if c := w.all["r0"].KVConnector(); c.Presence != engineinfo.Absent || c.Layout != "" {
		t.Errorf("%+v", c)
	}
	if why := b.fetch(api.Fetch{ID: 1, Blocks: []uint32{0}}); !strings.Contains(why, "not available") {
		t.Error(why)
	}
	a.connect()
	w.waitForEngines()
	if a.hello != (api.Hello{Version: api.Version, Replica: "r0", Incarnation: 7}) {
		t.Errorf("%+v", a.hello)
	}
	if why := b.fetch(api.Fetch{ID: 2, Blocks: []uint32{0}}); why != errNoOffer.Error() {
		t.Error(why)
	}
	a.offer(handle, 2)
	if why := b.fetch(api.Fetch{ID: 3, Blocks: []uint32{0}}); why != "" || b.slot(0)[0] != 3 {
		t.Errorf("%q, %d", why, b.slot(0)[0])
	}
}

// TestBrokenEngine breaks the protocol in each way after the welcome: the client disconnects and tries again.
func TestBrokenEngine(t *testing.T) {
	t.Parallel()
	e := newFrameEngine(t)
	newExchange(t).start("r0", e, 0, nil)
	for name, f := range map[string]api.Frame{
		"a slot that is not there": {Offer: &api.Offer{Handle: handle, Digest: digest, Blocks: []uint32{slots}, Sums: []uint32{0}}},
		"a frame of a migrator":    {Fetched: &api.Fetched{}},
		"checksums of more parts":  {Offer: &api.Offer{Handle: handle, Digest: digest, Blocks: []uint32{0}, Sums: []uint32{0, 0}}},
		"an answer to no call":     {Answer: &api.Answer{ID: 1}},
	} {
		e.connect()
		e.send(f)
		e.requireClosed(name)
	}
	e.connect()
	e.offer(handle, 1)
	e.offer(handle, 2)
	e.requireClosed("a handle that is in use")
}

// requireClosed waits until the client has closed the connection.
func (e *frameEngine) requireClosed(why string) {
	e.t.Helper()
	e.conn.SetReadDeadline(time.Now().Add(testkit.WaitTimeout()))
	if n, err := e.conn.Read(make([]byte, 1)); n != 0 || err == nil || strings.Contains(err.Error(), "timeout") {
		e.t.Errorf("%s: read %d bytes, %v", why, n, err)
	}
	e.conn.Close()
}

// unhex returns the bytes of a valid handle or digest.
func unhex(s string) []byte { return testkit.Must(hex.DecodeString(s)) }
