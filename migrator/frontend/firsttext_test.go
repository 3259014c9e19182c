package frontend

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
)

// seesIDs is a request whose client has the ids of a character that has only begun.
var seesIDs = [2]string{"/v1/completions", `{"model":"m","prompt":"x","max_tokens":70,"stream":true,"return_token_ids":true}`}

// TestNoFirstText kills the engines of streams while no engine turns ids into text, or only one
// does: a stream that broke inside a character ends with an error, and never with wrong text.
func TestNoFirstText(t *testing.T) {
	for name, test := range map[string]struct {
		without []int // engines without /detokenize
		ends    bool
	}{
		"none has /detokenize": {[]int{0, 1, 2}, true},
		"the others have it":   {[]int{0}, false},
		"the own one has it":   {[]int{1, 2}, false},
		"only the last has it": {[]int{0, 1}, false},
	} {
		runInBubble(t, name, func(t *testing.T) {
			f := newFleet(t, 3, rescues)
			for _, i := range test.without {
				f.engines[i].noDetokenize.Store(true)
			}
			whole, ended := 0, 0
			for n := range 7 {
				s := f.startKind(seesIDs, 3+policies.Tokens(n))
				f.engines[0].killAll()
				switch got := withoutCached(<-s.got); {
				case got == withoutCached(s.want):
					whole++
				case strings.Contains(got, `"error"`) && !strings.Contains(got, "[DONE]"):
					ended++
				default:
					t.Errorf("after %d tokens: %s", n, firstDifference(got, withoutCached(s.want)))
				}
			}
			if whole == 0 || (ended > 0) != test.ends {
				t.Errorf("%d streams went on, %d ended", whole, ended)
			}
		})
	}
}

// TestLastText finds the ids whose text a client has.
func TestLastText(t *testing.T) {
	runServer(t, nil, func(t *testing.T, _ *engine, f *testServer) {
		for _, test := range []struct {
			ids         []uint32
			least, most int
			n           int
			text        string
		}{
			{[]uint32{1, 2}, 0, 2, 2, " w1\"\n< w2\"\n<"},
			{[]uint32{1, 7}, 0, 2, 1, " w1\"\n<"},              // the last of several tokens of an event began a character
			{[]uint32{1, 7, 14, 3}, 0, 3, 1, " w1\"\n<"},       // and so did the one before
			{[]uint32{7, 1}, 0, 2, 2, "é w1\"\n<"},             // the character has ended
			{[]uint32{1, 7}, 2, 2, 2, " w1\"\n<" + incomplete}, // the prompt's end, however it ends
			{[]uint32{7}, 0, 1, 0, ""},
			{nil, 0, 0, 0, ""},
			{sevens(20), 0, 20, 20 - detokenizeIDs, incomplete}, // no more requests
		} {
			x := &firstText{server: f.Server, ids: test.ids}
			if n, text, err := x.lastText(t.Context(), test.least, test.most); n != test.n || text != test.text || err != nil {
				t.Errorf("%v: %d ids with %q, %v; want %d with %q", test.ids, n, text, err, test.n, test.text)
			}
		}
	})
}

// TestFirstText corrects events of engines of each kind: those that send all text so far, those that get it
// right, and those that lose the character; and events with a token that has no text in answers.
func TestFirstText(t *testing.T) {
	runServer(t, nil, func(t *testing.T, _ *engine, f *testServer) {
		for _, test := range []struct {
			ids    string // of the event
			text   string // of the event
			finish bool
			want   string // "": an error
		}{
			{"2", "prompt w1\"\n<é w2\"\n<", false, "é w2\"\n<"},
			{"2", "é w2\"\n<", false, "é w2\"\n<"},
			{"2", incomplete + " w2\"\n<", false, "é w2\"\n<"},
			{"2", " w2\"\n<", true, "é w2\"\n<"},
			{"2", "something else", true, ""},
			{"2", incomplete, false, ""},
			{"2,3", "é w2\"\n< w3\"\n<", false, "é w2\"\n< w3\"\n<"},
			{"2,7", "é w2\"\n<", false, "é w2\"\n<"},       // the last one begins a character again
			{"2,3", "prompt é w2\"\n<", true, "é w2\"\n<"}, // 3 ends the answer, and has no text
			{"2,3", "prompt é w2\"\n<", false, ""},
			{"14", "prompt" + incomplete, true, incomplete},
		} {
			x := &firstText{server: f.Server, ctx: t.Context(), ids: []uint32{1, 7}, shown: " w1\"\n<", shownIDs: 1}
			got, done, err := x.correct(textEvent(t, test.ids, test.text, test.finish))
			switch {
			case test.want == "" && err == nil:
				t.Errorf("%+v: %q", test, got.Text())
			case test.want != "" && (err != nil || !done || got.Text() != test.want):
				t.Errorf("%+v: %+v, %v, %v", test, got, done, err)
			}
		}
	})
}

// textEvent is an event of an answer.
func textEvent(t *testing.T, ids, text string, finishes bool) *openai.Chunk {
	t.Helper()
	finish := "null"
	if finishes {
		finish = `"stop"`
	}
	ev := testkit.Must(openai.NewReader(strings.NewReader(`data: {"choices":[{"index":0,"text":` + quote(text) + `,"finish_reason":` + finish + `,"token_ids":[` + ids + `]}]}` + "\n\n")).Next())
	var c openai.Chunk
	testkit.NoError(t, c.Parse(ev))
	return &c
}

// sevens returns so many ids of which none ends a character.
func sevens(n int) []uint32 { return slices.Repeat([]uint32{7}, n) }

// TestNoTextYet corrects the first text of a client that has none.
func TestNoTextYet(t *testing.T) {
	runServer(t, nil, func(t *testing.T, _ *engine, f *testServer) {
		x := &firstText{server: f.Server, ctx: t.Context()}
		if got, done, err := x.correct(textEvent(t, "7", "prompt"+incomplete, true)); err != nil || !done || got.Text() != incomplete {
			t.Errorf("%+v, %v, %v", got, done, err)
		}
		c := textEvent(t, `"x"`, "y", true)
		if got, done, err := x.correct(c); got != c || done || err != nil {
			t.Errorf("ids that cannot be read are for the reader of the event: %+v, %v, %v", got, done, err)
		}
	})
}

// TestSlowFirstText bounds the time of all requests about one event.
func TestSlowFirstText(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		e.detokenizeTime.Store(int64(detokenizeTimeout * 4 / 5))
		x := &firstText{server: f.Server, ctx: t.Context(), ids: sevens(detokenizeIDs)}
		begun := time.Now()
		_, _, err := x.correct(textEvent(t, "7", incomplete, false))
		if took := time.Since(begun); !errors.Is(err, context.DeadlineExceeded) || took != firstTextTimeout {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// TestNewFirstText checks from where on the text of an answer is compared with what the client has.
func TestNewFirstText(t *testing.T) {
	runServer(t, nil, func(t *testing.T, _ *engine, f *testServer) {
		s := &Stream{server: f.Server, ctx: t.Context()}
		ones := slices.Repeat([]uint32{1}, 30)
		for name, test := range map[string]struct {
			ids             []uint32
			prompt, textIDs int
			of, shown       int // ids that are kept, and those of them whose text the client has; 0: no correction
			text            string
		}{
			"the text ends with a character":                   {[]uint32{1, 7, 2}, 1, 1, 0, 0, ""},
			"a character has begun":                            {[]uint32{1, 2, 7}, 1, 2, 3, 2, " w1\"\n< w2\"\n<"},
			"a character has begun, with text before it":       {[]uint32{1, 2, 7}, 1, 1, 3, 1, " w1\"\n<"},
			"the prompt ends inside a character":               {[]uint32{1, 7, 14}, 2, 2, 3, 2, " w1\"\n<" + incomplete},
			"the last ids are enough":                          {append(ones, 2, 7), 1, 31, 17, 16, strings.Repeat(" w1\"\n<", 15) + " w2\"\n<"},
			"the prompt is longer than what is compared":       {append(ones, 2, 7), 31, 31, 17, 16, strings.Repeat(" w1\"\n<", 15) + " w2\"\n<"},
			"the prompt's end is among them, and no character": {append(ones, 7, 7), 31, 31, 17, 16, strings.Repeat(" w1\"\n<", 15) + incomplete},
		} {
			x, err := s.newFirstText(t.Context(), policies.Target{}, test.ids, test.prompt, test.textIDs)
			switch {
			case err != nil || (x == nil) != (test.of == 0):
				t.Errorf("%s: %+v, %v", name, x, err)
			case x != nil && (len(x.ids) != test.of || x.shownIDs != test.shown || x.shown != test.text):
				t.Errorf("%s: %d ids, the text of %d is %q; want %d, %d, %q", name, len(x.ids), x.shownIDs, x.shown, test.of, test.shown, test.text)
			}
		}
	})
}

// TestTextMayHaveEnded kills an engine that sends several tokens at once and turns none into text, as no
// other does: the client's text may have ended with a character, and the stream goes on.
func TestTextMayHaveEnded(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		for _, e := range f.engines {
			e.tokensPerEvent.Store(2)
			e.noDetokenize.Store(true)
		}
		s := f.startKind([2]string{"/v1/completions", longRequest}, 4)
		f.engines[0].killAll()
		if got := <-s.got; !strings.Contains(got, `"finish_reason":"length"`) || strings.Contains(got, "error") {
			t.Errorf("the stream ends: %s", got)
		}
	}, rescues)
}

// TestMovesOfSeveralTokens moves streams whose engines send several tokens at once, as with
// --stream-interval and speculative decoding: answers of every kind are the engine's own.
func TestMovesOfSeveralTokens(t *testing.T) {
	for name, tokens := range map[string]int64{"two": 2, "eight": 8} {
		runInBubble(t, name, func(t *testing.T) {
			f := newFleet(t, 3, handsOver)
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
	runFleet(t, 2, func(t *testing.T, f *fleet) {
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
			f := newFleet(t, 3)
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
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		if resp, body := post(t, f.client, f.servers[1].peer, detokenizePath, `{"tokens":[1]}`); resp.StatusCode == http.StatusOK || !strings.Contains(body, "for migrators") || f.engines[1].detokenized.Load() > 0 {
			t.Errorf("a client's request: %s %s", resp.Status, body)
		}
		f.engines[1].noDetokenize.Store(true)
		if _, err := f.textAt(t.Context(), f.target(1), []uint32{1}); err == nil || !strings.Contains(err.Error(), "404") {
			t.Errorf("an engine without /detokenize: %v", err)
		}
		f.engines[1].Close()
		if _, err := f.textAt(t.Context(), f.target(1), []uint32{1}); err == nil {
			t.Error("a dead engine answers")
		}
	})
}
