package emulator

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	wire "github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// For any tokens, any stop strings and any grouping of the tokens, the result equals that of a
// search in the whole text.
func TestTextAgainstOracle(t *testing.T) {
	v, err := vocabulary()
	testkit.NoError(t, err)
	// The alphabet is so small that stop strings occur, and has a character of three tokens.
	alphabet, err := v.Encode("ab🌿, a")
	testkit.NoError(t, err)
	stopped := 0
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 5))
		ids := make([]model.Token, 1+rng.IntN(30))
		for i := range ids {
			ids[i] = alphabet[rng.IntN(len(alphabet))]
		}
		whole := v.Decode(ids)
		q := &request{includeStop: rng.IntN(2) == 0}
		for range rng.IntN(3) {
			at := rng.IntN(len(whole) + 1)
			stop := whole[at:min(len(whole), at+1+rng.IntN(6))]
			if stop != "" && utf8.ValidString(stop) {
				q.stops = append(q.stops, stop)
			}
		}
		// The oracle checks after each token whether the text so far contains a stop string.
		want, used, by := whole, len(ids), ""
	search:
		for n := 1; n <= len(ids); n++ {
			var d model.Decoder
			var b []byte
			for _, id := range ids[:n] {
				b = d.Append(b, v.Piece(id))
			}
			first := -1
			for _, s := range q.stops {
				if at := strings.Index(string(b), s); at >= 0 && (first < 0 || at < first) {
					first, by = at, s
				}
			}
			if first >= 0 {
				if q.includeStop {
					first += len(by)
				}
				want, used = string(b[:first]), n
				stopped++
				break search
			}
		}
		txt := newText(v, q)
		var got []byte
		var end ending
		n := 0
		for n < len(ids) && end.reason == "" {
			group := ids[n:min(len(ids), n+1+rng.IntN(4))]
			var mine []model.Token
			mine, end = decodeTokens(txt, q, group, 0)
			n += len(mine)
			if n == len(ids) && end.reason == "" {
				end.reason = "length"
			}
			got = txt.takeAfter(end, got)
			if !utf8.Valid(got) {
				t.Fatalf("seed %d: %q cuts a character", seed, got)
			}
		}
		if string(got) != want || n != used || end.stop != by {
			t.Fatalf("seed %d: stops %q in %q: got %q after %d tokens by %q, want %q after %d by %q", seed, q.stops, whole, got, n, end.stop, want, used, by)
		}
	}
	if stopped < 500 {
		t.Errorf("only %d texts were stopped", stopped)
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"prompt":"a","max_tokens":3,"stream":true,"stream_options":{"include_usage":true}}`,
		`{"prompt":[1, 2,3],"stop":["a","b"],"stop_token_ids":[5]}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"kv_transfer_params":{"prompt_token_ids":[1]}}`,
		`{"messages":[],"kv_transfer_params":{"prompt_token_ids":[1,2]}}`, `{"prompt":[],"kv_transfer_params":{"cascade_reservation":"a/1","cascade_prompt":3}}`,
		`{"messages":[],"kv_transfer_params":{"cascade_reservation":7}}`, `{"prompt":"a","kv_transfer_params":["cascade_reservation"]}`,
		`{"prompt":[[1]]}`, `{"prompt":[1,]}`, `{"prompt":[1 2]}`, `{"n":1e300}`, `{"prompt":"\ud800"}`, `[[[`, ``,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		for _, a := range []api{completions, chat} {
			q, err := decode(a, []byte(body))
			if err != nil {
				if err.Code < 400 || err.Message == "" {
					t.Errorf("error without a message: %+v", err)
				}
				continue
			}
			prompt := q.text != "" || len(q.ids) > 0 || len(q.messages) > 0
			if prompt == (q.reservation != "") {
				t.Errorf("%q: accepted with a prompt: %v, with a reservation: %q", body, prompt, q.reservation)
			}
			if len(q.reservation) > wire.MaxName || q.from < 0 {
				t.Errorf("%q: reservation %q, output from %d on", body, q.reservation, q.from)
			}
			for _, id := range q.ids {
				if id >= model.VocabularySize {
					t.Errorf("%q: token %d", body, id)
				}
			}
			if !utf8.ValidString(q.text) {
				t.Errorf("%q: the prompt is not UTF-8", body)
			}
		}
	})
}

func TestDepth(t *testing.T) {
	for in, want := range map[string]int{``: 0, `{}`: 1, `[[]]`: 2, `{"[[[":[1]}`: 2, `"\"[["`: 0, `[[[`: 3, `]]][`: -2} {
		if got := depth([]byte(in)); got != max(want, 0) {
			t.Errorf("depth(%q) = %d, want %d", in, got, max(want, 0))
		}
	}
}

// TestBegunCharacter checks that the first text after a prompt that ends inside a character is
// that of the whole prompt and what follows, as with vLLM.
func TestBegunCharacter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, stop := start(t, Config{})
		defer stop()
		whole := complete(t, e, `{"prompt":[7,8,9],"max_tokens":300,"ignore_eos":true,"return_token_ids":true}`).Choices[0]
		shown, cuts := newText(e.model.Vocabulary, &request{}), 0
		var text []byte
		before := e.model.Vocabulary.Decode([]model.Token{7, 8, 9})
		for i, id := range whole.TokenIDs[:290] {
			was := len(text)
			shown.add(id)
			text = shown.takeReady(text)
			inside := len(text) == was
			prompt, want := "[7,8,9", whole.Text[len(text):]
			if inside {
				want = before + whole.Text
				cuts++
			} else if i%10 > 0 {
				continue
			}
			for _, id := range whole.TokenIDs[:i+1] {
				prompt += fmt.Sprintf(",%d", id)
			}
			if got := complete(t, e, fmt.Sprintf(`{"prompt":%s],"max_tokens":%d,"ignore_eos":true}`, prompt, 300-i-1)).Choices[0].Text; got != want {
				t.Errorf("from token %d on: %.40q, want %.40q", i+1, got, want)
			}
		}
		if cuts == 0 {
			t.Error("no token is a part of a character")
		}
	})
}

// Seeding examines the bytes that may begin a character, and no others.
func TestSeed(t *testing.T) {
	v, err := vocabulary()
	testkit.NoError(t, err)
	for _, whole := range []string{"a b c", "x🌿y龍z", "🌿🌿", "龍", "ᚠ and 𝄞", "\x80\x80🌿\xf0\x9f", "é\xc3"} {
		ids, err := v.Encode(whole)
		testkit.NoError(t, err)
		show := func(tx *text, ids []model.Token, end bool) (out []byte) {
			for _, id := range ids {
				tx.add(id)
				out = tx.takeReady(out)
			}
			if end {
				out = tx.takeRest(out)
			}
			return out
		}
		want := show(newText(v, &request{}), ids, true)
		for cut := range ids {
			first, then := newText(v, &request{}), newText(v, &request{})
			got := show(first, ids[:cut], false)
			then.seed(tail(v, ids[:cut]))
			got = append(got, show(then, ids[cut:], true)...)
			if string(got) != string(want) {
				t.Errorf("%q cut at %d: %q, want %q", whole, cut, got, want)
			}
		}
	}
}
