package emulator

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	wire "github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// When a session ends, its reservations are freed and its frozen requests continue; those of other
// sessions remain.
func TestSessionEnd(t *testing.T) {
	s := serve(t, Config{Speed: 20})
	other, leave := s.openSession(t)
	defer leave()
	answer, cancel := s.run(t, "a", long)
	s.table(t, "a")
	frozen := s.freeze(t, "a")
	for name, session := range map[string]string{"mine": s.session, "other": other} {
		check(t, second(s.rpc.Reserve(t.Context(), &wire.ReserveRequest{Session: session, Reservation: name, Tokens: 320})))
	}
	check(t, second(s.rpc.MarkFilled(t.Context(), &wire.MarkFilledRequest{Reservation: "mine", Ids: []uint32{1, 2}, Computed: 1})))
	s.waitForStats(t, "frozen", func(st batch.Stats) bool { return st.Frozen == 1 && st.Running == 0 && st.Reserved == 40 })
	s.leave()
	testkit.WaitFor(t, "the request to continue", func() bool { return s.table(t, "a").Length >= frozen.Length+5 })
	cancel()
	<-answer
	s.waitForStats(t, "after the session", func(st batch.Stats) bool { return st.Frozen == 0 && st.Reserved == 20 && st.UsedBlocks == 20 })
	for _, err := range []error{
		second(s.rpc.Reserve(t.Context(), &wire.ReserveRequest{Session: s.session, Reservation: "late", Tokens: 1})),
		second(s.rpc.MarkFilled(t.Context(), &wire.MarkFilledRequest{Reservation: "mine", From: 2})),
		second(s.rpc.Table(t.Context(), &wire.TableRequest{Leg: "a"})),
		second(s.rpc.Drop(t.Context(), &wire.LegRequest{Leg: "a"})),
	} {
		if status.Code(err) != codes.NotFound {
			t.Errorf("after the session: %v", err)
		}
	}
	leave()
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
			session, leave, err := s.tryOpenSession()
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
					s.rpc.Reserve(ctx, &wire.ReserveRequest{Session: session, Reservation: reservation(), Tokens: uint64(rng.IntN(200))})
				case 2, 3:
					n := rng.IntN(64)
					s.rpc.MarkFilled(ctx, &wire.MarkFilledRequest{Reservation: reservation(), Ids: make([]uint32, n), Computed: uint64(rng.IntN(n + 1))})
				case 4:
					s.rpc.Release(ctx, &wire.ReleaseRequest{Reservation: reservation()})
				case 5:
					a, c := s.run(t, "", fmt.Sprintf(`{"prompt":[],"max_tokens":%d,"ignore_eos":true,"kv_transfer_params":{"cascade_reservation":%q}}`, 1+rng.IntN(200), reservation()))
					requests = append(requests, asked{a, c})
				case 6:
					hurried, stop := context.WithTimeout(ctx, time.Duration(rng.IntN(400))*time.Microsecond)
					s.rpc.Freeze(hurried, &wire.TableRequest{Session: session, Leg: leg()})
					stop()
				case 7:
					s.rpc.Thaw(ctx, &wire.LegRequest{Leg: leg()})
				case 8:
					s.rpc.Drop(ctx, &wire.LegRequest{Leg: leg()})
				case 9:
					if len(requests) > 0 {
						requests[rng.IntN(len(requests))].cancel()
					} else {
						leave()
						if session, leave, err = s.tryOpenSession(); err != nil {
							t.Error(err)
							return
						}
					}
				}
			}
			leave()
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
