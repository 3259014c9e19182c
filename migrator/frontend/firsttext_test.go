package frontend

import (
	"strings"
	"testing"
	"testing/synctest"

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
			f, _ := newRescueFleet(t, 3, nil)
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
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
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
		} {
			x := &firstText{server: f.servers[0].Server, ids: test.ids}
			if n, text, err := x.lastText(t.Context(), test.least, test.most); n != test.n || text != test.text || err != nil {
				t.Errorf("%v: %d ids with %q, %v; want %d with %q", test.ids, n, text, err, test.n, test.text)
			}
		}
	})
}

// TestFirstText corrects events of engines of each kind: those that send all text so far, those that get it
// right, and those that lose the character; and events with a token that has no text in answers.
func TestFirstText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
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
			{"2,3", "é w2\"\n< w3\"\n<", false, "é w2\"\n< w3\"\n<"},
			{"2,7", "é w2\"\n<", false, "é w2\"\n<"},       // the last one begins a character again
			{"2,3", "prompt é w2\"\n<", true, "é w2\"\n<"}, // 3 ends the answer, and has no text
			{"2,3", "prompt é w2\"\n<", false, ""},
			{"14", "prompt" + incomplete, true, incomplete},
		} {
			x := &firstText{server: f.servers[0].Server, ctx: t.Context(), ids: []uint32{1, 7}, shown: " w1\"\n<", shownIDs: 1}
			finish := "null"
			if test.finish {
				finish = `"stop"`
			}
			var c openai.Chunk
			ev, err := openai.NewReader(strings.NewReader(`data: {"choices":[{"index":0,"text":` + quote(test.text) + `,"finish_reason":` + finish + `,"token_ids":[` + test.ids + `]}]}` + "\n\n")).Next()
			if err == nil {
				err = c.Parse(ev)
			}
			if err != nil {
				t.Fatal(err)
			}
			got, done, err := x.correct(&c)
			switch {
			case test.want == "" && err == nil:
				t.Errorf("%+v: %q", test, got.Text())
			case test.want != "" && (err != nil || !done || got.Text() != test.want):
				t.Errorf("%+v: %+v, %v, %v", test, got, done, err)
			}
		}
	})
}

// TestTextMayHaveEnded kills an engine that sends several tokens at once and turns none into text, as no
// other does: the client's text may have ended with a character, and the stream goes on.
func TestTextMayHaveEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := newRescueFleet(t, 2, nil)
		for _, e := range f.engines {
			e.tokensPerEvent.Store(2)
			e.noDetokenize.Store(true)
		}
		s := f.startKind([2]string{"/v1/completions", longRequest}, 4)
		f.engines[0].killAll()
		if got := <-s.got; !strings.Contains(got, `"finish_reason":"length"`) || strings.Contains(got, "error") {
			t.Errorf("the stream ends: %s", got)
		}
	})
}
