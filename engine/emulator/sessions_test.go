package emulator

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	wire "github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// When a session ends, its reservations are freed and its frozen requests continue; those of other
// sessions remain.
func TestSessionEnd(t *testing.T) {
	s := serve(t, Config{Speed: 20})
	other := testkit.Must(s.open())
	defer other.Close()
	answer, cancel := s.run(t, "a", long)
	s.table(t, "a")
	frozen := s.freeze(t, "a")
	for name, session := range map[string]*wire.Conn{"mine": s.session, "other": other} {
		testkit.NoError(t, callOn(t.Context(), session, wire.Call{Op: wire.Reserve, Reservation: name, Tokens: 320}))
	}
	testkit.NoError(t, s.call(wire.Call{Op: wire.Fill, Reservation: "mine", IDs: []uint32{1, 2}, Computed: 1}))
	s.waitForStats(t, "frozen", func(st batch.Stats) bool { return st.Frozen == 1 && st.Running == 0 && st.Reserved == 40 })
	s.session.Close()
	s.session = other
	testkit.WaitFor(t, "the request to continue", func() bool { return s.table(t, "a").Length >= frozen.Length+5 })
	cancel()
	<-answer
	s.waitForStats(t, "after the session", func(st batch.Stats) bool { return st.Frozen == 0 && st.Reserved == 20 && st.UsedBlocks == 20 })
	for _, err := range []error{
		s.call(wire.Call{Op: wire.Fill, Reservation: "mine", From: 2}),
		s.call(wire.Call{Op: wire.List, Leg: "a"}),
		s.call(wire.Call{Op: wire.Drop, Leg: "a"}),
	} {
		if code(err) != wire.NotFound {
			t.Errorf("after the session: %v", err)
		}
	}
	other.Close()
	s.waitForStats(t, "at the end", empty)
}

// Several sessions use everything at once, with clients that disconnect: nothing hangs, and when
// all have ended, nothing is held.
func TestNothingLeaks(t *testing.T) {
	s := serve(t, Config{Speed: 200, MaxBatch: 6, KVTokens: 1024, Context: 1024})
	var all sync.WaitGroup
	for worker := range 6 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(worker), 4))
			session, err := s.open()
			if err != nil {
				t.Error(err)
				return
			}
			type asked struct {
				answer <-chan *httptest.ResponseRecorder
				cancel func()
			}
			var requests []asked
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			leg := func() string { return fmt.Sprint("leg", rng.IntN(6)) }
			reservation := func() string { return fmt.Sprint(worker/2, "/", rng.IntN(4)) }
			for op := range 120 {
				switch rng.IntN(10) {
				case 0:
					a, c := s.run(t, leg(), fmt.Sprintf(`{"prompt":[%d,2,3],"max_tokens":%d,"ignore_eos":true,"stream":true}`, op, 1+rng.IntN(300)))
					requests = append(requests, asked{a, c})
				case 1:
					callOn(ctx, session, wire.Call{Op: wire.Reserve, Reservation: reservation(), Tokens: uint64(rng.IntN(200))})
				case 2, 3:
					n := rng.IntN(64)
					callOn(ctx, session, wire.Call{Op: wire.Fill, Reservation: reservation(), IDs: make([]uint32, n), Computed: uint64(rng.IntN(n + 1))})
				case 4:
					callOn(ctx, session, wire.Call{Op: wire.Release, Reservation: reservation()})
				case 5:
					a, c := s.run(t, "", fmt.Sprintf(`{"prompt":[],"max_tokens":%d,"ignore_eos":true,"kv_transfer_params":{"cascade_reservation":%q}}`, 1+rng.IntN(200), reservation()))
					requests = append(requests, asked{a, c})
				case 6:
					hurried, stop := context.WithTimeout(ctx, time.Duration(rng.IntN(400))*time.Microsecond)
					callOn(hurried, session, wire.Call{Op: wire.Freeze, Leg: leg()})
					stop()
				case 7:
					callOn(ctx, session, wire.Call{Op: wire.Thaw, Leg: leg()})
				case 8:
					callOn(ctx, session, wire.Call{Op: wire.Drop, Leg: leg()})
				case 9:
					if len(requests) > 0 {
						requests[rng.IntN(len(requests))].cancel()
					} else {
						session.Close()
						if session, err = s.open(); err != nil {
							t.Error(err)
							return
						}
					}
				}
			}
			session.Close()
			for i, r := range requests {
				if i%2 == 0 {
					r.cancel()
				}
				<-r.answer
			}
			if ctx.Err() != nil {
				t.Error("a call hangs")
			}
		})
	}
	all.Wait()
	s.waitForStats(t, "when all have left", empty)
	testkit.WaitForValue(t, "the end of all legs and calls", func() int { // sessions end asynchronously
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.legs) + len(s.calls)
	}, func(left int) bool { return left == 0 })
}
