package frontend

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestMovesOfSeveralTokens moves streams whose engines send several tokens at once, as with
// --stream-interval and speculative decoding: answers of every kind are the engine's own.
func TestMovesOfSeveralTokens(t *testing.T) {
	for name, tokens := range map[string]int64{"two": 2, "eight": 8} {
		runInBubble(t, name, func(t *testing.T) {
			f, _ := newHandoffFleet(t, 3, nil)
			f.learnTemplates()
			for _, e := range f.engines {
				e.tokensPerEvent.Store(tokens)
			}
			f.hop(3, f.handOn)
			if f.engines[0].detokenized.Load() == 0 {
				t.Error("no text was checked")
			}
		})
	}
}

// TestTextNotChecked moves a stream of several tokens per event whose engine turns no ids into
// text: it stays where it is.
func TestTextNotChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, nil)
		f.engines[0].tokensPerEvent.Store(2)
		f.engines[0].noDetokenize.Store(true)
		b := f.startStream(longRequest)
		if _, err := f.migrateReprompt(t.Context(), b.id, 1); !errors.Is(err, ErrNoStream) {
			t.Errorf("the migration ends with %v", err)
		}
		f.requireAnswer(b)
	})
}

// TestTextCheckedAtHolder moves a stream of several tokens per event between two peers while the
// own engine cannot be asked: the holder's is, and the client's text is cut at a character.
func TestTextCheckedAtHolder(t *testing.T) {
	for name, test := range map[string]struct {
		spoil  func(*engine)
		holder bool // is asked
	}{
		"the own engine answers": {func(*engine) {}, false},
		"without /detokenize":    {func(e *engine) { e.noDetokenize.Store(true) }, true},
		"away, or another model": {func(e *engine) { e.unhealthy.Store(true); e.detokenizesWrong.Store(true) }, true},
	} {
		runInBubble(t, name, func(t *testing.T) {
			f := newFleet(t, 3, nil)
			for _, e := range f.engines {
				e.tokensPerEvent.Store(2)
			}
			b := f.startSlowStream(longRequest)
			f.engines[1].slowLegs("#2")
			testkit.Must(f.migrateReprompt(t.Context(), b.id, 1))
			test.spoil(f.engines[0])
			time.Sleep(time.Second) // the own server finds out
			before := f.engines[1].detokenized.Load()
			if _, err := f.migrateReprompt(t.Context(), b.id, 2); err != nil {
				t.Error(err)
			}
			if asked := f.engines[1].detokenized.Load() > before; asked != test.holder {
				t.Errorf("the holder was asked: %v", asked)
			}
			f.requireAnswer(b)
		})
	}
}

// TestPeerDetokenize refuses clients at the peers' port, and passes an engine's refusal on.
func TestPeerDetokenize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, nil)
		srv := f.servers[0]
		if resp, body := post(t, srv.client, f.servers[1].peer, detokenizePath, `{"tokens":[1]}`); resp.StatusCode == http.StatusOK || !strings.Contains(body, "for migrators") || f.engines[1].detokenized.Load() > 0 {
			t.Errorf("a client's request: %s %s", resp.Status, body)
		}
		f.engines[1].noDetokenize.Store(true)
		if _, err := srv.textAt(t.Context(), f.target(1), []uint32{1}); err == nil || !strings.Contains(err.Error(), "404") {
			t.Errorf("an engine without /detokenize: %v", err)
		}
		f.engines[1].Close()
		if _, err := srv.textAt(t.Context(), f.target(1), []uint32{1}); err == nil {
			t.Error("a dead engine answers")
		}
	})
}
