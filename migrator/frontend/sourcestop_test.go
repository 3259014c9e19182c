package frontend

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

var spoken = regexp.MustCompile(`"(?:text|content)":("(?:[^"\\]|\\.)*")`)

// textOf returns the text of a streamed answer, however its events are grouped.
func textOf(t *testing.T, answer string) string {
	t.Helper()
	var text strings.Builder
	for _, m := range spoken.FindAllStringSubmatch(answer, -1) {
		s, err := strconv.Unquote(m[1])
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString(s)
	}
	return text.String()
}

// TestSourceStops stops the migrator between a front end and an engine, lets it
// go on after it was given up, and lets it die during a migration. After a pause
// an engine sends several tokens per event; the client gets each of them once,
// whichever leg sent it.
func TestSourceStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := newRescueFleet(t, 3, nil)
		grouped := func(n int64) {
			for _, e := range f.engines {
				e.tokensPerEvent.Store(n)
			}
		}
		for _, kind := range requestKinds() {
			if !strings.Contains(kind[1], `"stream"`) {
				continue
			}
			for n := range int64(6) {
				grouped(1)
				s := f.startKind(kind, 3)
				waitFor(t, func() bool { _, err := f.migrateReprompt(t.Context(), s.id, 1); return err == nil })
				later := func(more policies.Tokens) {
					goal := s.Request().Output + more
					waitFor(t, func() bool { return s.Request().Output >= goal })
				}

				// The source stops while a migration is negotiated: for its front end
				// it is gone. When it goes on, its events are dropped.
				grouped(2 + n)
				later(policies.Tokens(4 + 2*n))
				f.servers[0].HandlePeerLoss("r1")
				waitFor(t, func() bool { h, _ := f.servers[0].Holder(s.id); return h == Holder{Replica: "r0", Epoch: 3} })

				// The next one dies when its target is ready: the stream is frozen,
				// and the target sends no token.
				later(policies.Tokens(2 + n))
				dead := make(chan struct{})
				f.engines[2].set(nil, func(_ http.ResponseWriter, r *http.Request) {
					io.Copy(io.Discard, r.Body)
					select {
					case <-dead:
					case <-r.Context().Done():
					}
					panic(http.ErrAbortHandler)
				})
				grouped(1)
				calls := f.engines[2].calls.Load()
				moved := make(chan error, 1)
				go func() {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					defer cancel()
					_, err := f.migrateReprompt(ctx, s.id, 2)
					for ; err == ErrStaleEpoch; _, err = f.migrateReprompt(ctx, s.id, 2) {
						time.Sleep(time.Millisecond)
					}
					moved <- err
				}()
				waitFor(t, func() bool { return f.engines[2].calls.Load() > calls })
				grouped(2 + n)
				f.engines[0].killAll()
				close(dead)
				if err := <-moved; err == nil {
					t.Error("a stream migrated to a replica that sent no token")
				}
				waitFor(t, func() bool { h, _ := f.servers[0].Holder(s.id); return h.Replica == "r1" && !h.Pending })
				if got, want := textOf(t, <-s.got), textOf(t, s.want); got != want {
					t.Fatalf("%s, %d tokens at once: %s", kind, 2+n, firstDifference(got, want))
				}
			}
		}
		f.requireIdle()
	})
}
