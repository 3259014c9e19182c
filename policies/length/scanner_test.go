package length

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

func scan(data []byte) (Count, string) {
	var s Scanner
	s.Write(data)
	return s.Count(), string(s.Model())
}

// bodies are requests with the expected counts, written by hand: the oracle could share
// a misunderstanding with the scanner.
var bodies = []struct {
	name, body, model string
	want              Count // except Bytes
}{
	{"text", `{"model":"m","prompt":"hello","max_tokens":7}`, "m", Count{Text: 5, MaxTokens: 7, Found: true}},
	{"blanks", " {\n\t\"prompt\" : \"a b\" , \"model\" : \"m\" } \r\n", "m", Count{Text: 3, Found: true}},
	{"escapes", `{"model":"a\/b\u0041","prompt":"\n\"\\\u00e9\u4e2d"}`, "a/bA", Count{Text: 1 + 1 + 1 + 2 + 3, Found: true}},
	{"surrogates", `{"model":"\ud83d\ude00","prompt":"\ud83d\ude00\ud83d\ude00\ud83dx\ude00"}`, "😀", Count{Text: 4 + 4 + 3 + 1 + 3, Found: true}},
	{"escaped key", `{"\u006dodel":"m","\u0070rompt":"x"}`, "m", Count{Text: 1, Found: true}},
	{"list of texts: the longest", `{"prompt":["a","bbbb","cc"]}`, "", Count{Text: 4, Prompts: 3, OtherText: 3, Found: true}},
	{"texts to embed", `{"input":["a","bbbb"]}`, "", Count{Text: 4, Prompts: 2, OtherText: 1, Found: true}},
	{"texts as messages", `{"messages":["a","bbbb"]}`, "", Count{Text: 4, Found: true}},
	{"one text in a list", `{"prompt":["abc"]}`, "", Count{Text: 3, Found: true}},
	{"documents to rank", `{"query":"abc","documents":["d",{"text":"no"},"e"]}`, "", Count{Prompts: 3, OtherText: 6}},
	{"a score", `{"text_1":"abc","text_2":"d"}`, "", Count{}},
	{"scores", `{"text_1":["abc"],"text_2":["d","e"]}`, "", Count{Prompts: 2, OtherText: 3}},
	{"scores of pairs", `{"text_1":["abc","b"],"text_2":["d","e"]}`, "", Count{Prompts: 2}},
	{"documents of a chat", `{"messages":[{"content":"a"}],"documents":[{"text":"a"},{"text":"b"}]}`, "", Count{Text: 1, Found: true}},
	{"token ids", `{"prompt":[1,22,333,0]}`, "", Count{Tokens: 4, Found: true}},
	{"lists of token ids: the longest", `{"prompt":[[1,2],[1,2,3],[]]}`, "", Count{Tokens: 3, Prompts: 3, OtherTokens: 2, Found: true}},
	{"empty prompt", `{"prompt":""}`, "", Count{Found: true}},
	{"null prompt", `{"prompt":null}`, "", Count{}},
	{"messages", `{"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"hi"}]}`, "", Count{Text: 10, Found: true}},
	{"parts", `{"messages":[{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA","text":"no"}},{"type":"input_audio","input_audio":{"data":"BBBB"}}]}]}`, "",
		Count{Text: 3, Media: 2, Found: true}},
	{"tool calls", `{"messages":[{"role":"assistant","content":null,"tool_calls":[ {"a": "\n"} ]}]}`, "", Count{Text: int64(len(`[{"a":"\n"}]`)), Found: true}},
	{"function call", `{"messages":[{"content":"a","function_call":{"b":1}}]}`, "", Count{Text: 1 + int64(len(`{"b":1}`)), Found: true}},
	{"last limit wins, null", `{"prompt":"","max_tokens":5,"max_tokens":null}`, "", Count{Found: true}},
	{"tools", `{"messages":[],"tools":[{"type":"function", "function": {"name":"f"}}]}`, "", Count{Text: int64(len(`[{"type":"function","function":{"name":"f"}}]`)), Found: true}},
	{"last key wins", `{"model":"a","prompt":"long long","model":"b","prompt":"s","max_tokens":5,"max_tokens":6}`, "b", Count{Text: 1, MaxTokens: 6, Found: true}},
	{"last key wins in a message", `{"messages":[{"content":"aaaa","content":"b"},{"content":[{"text":"ccc","text":"d"}]}]}`, "", Count{Text: 2, Found: true}},
	{"last key wins, null", `{"prompt":"aaaa","prompt":null}`, "", Count{}},
	{"two prompts add up", `{"prompt":"aaaa","messages":[{"content":"b"}]}`, "", Count{Text: 5, Found: true}},
	{"newer limit first", `{"prompt":"","max_completion_tokens":3,"max_tokens":9}`, "", Count{MaxTokens: 3, Found: true}},
	{"limits that are none", `{"prompt":"","max_completion_tokens":-3,"max_tokens":1.5}`, "", Count{Found: true}},
	{"huge limit", `{"prompt":"","max_tokens":99999999999999999999}`, "", Count{MaxTokens: 1<<63 - 1, Found: true}},
	{"responses", `{"input":"abc","instructions":"de"}`, "", Count{Text: 5, Found: true}},
	{"deeper model is not the model", `{"x":{"model":"no","prompt":"no"},"prompt":"yes"}`, "", Count{Text: 3, Found: true}},
	{"model of another type", `{"model":["m"],"prompt":"x"}`, "", Count{Text: 1, Found: true}},
	{"model too long", `{"model":"` + strings.Repeat("m", MaxModel+1) + `","prompt":"x"}`, "", Count{Text: 1, Found: true}},
	{"longest model", `{"model":"` + strings.Repeat("m", MaxModel) + `"}`, strings.Repeat("m", MaxModel), Count{}},
	{"not an object", `["prompt","x"]`, "", Count{}},
	{"number alone", `12`, "", Count{}},
	{"nothing", ``, "", Count{Malformed: true}},
	{"cut short", `{"model":"m","prompt":"hel`, "m", Count{Malformed: true}},
	{"cut before the end", `{"model":"m","prompt":"hello"`, "m", Count{Text: 5, Found: true, Malformed: true}},
	{"more than one value", `{"prompt":"x"} {}`, "", Count{Text: 1, Found: true, Malformed: true}},
	{"control character", "{\"prompt\":\"a\nb\"}", "", Count{Malformed: true}},
	{"trailing comma", `{"prompt":"x",}`, "", Count{Text: 1, Found: true, Malformed: true}},
	{"not JSON", `model=m&prompt=x`, "", Count{Malformed: true}},
	{"deepest", `{"prompt":"x","y":` + strings.Repeat("[", MaxDepth-1) + strings.Repeat("]", MaxDepth-1) + `}`, "", Count{Text: 1, Found: true}},
	{"too deep", `{"prompt":"x","y":` + strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth) + `}`, "", Count{Text: 1, Found: true, Malformed: true}},
}

func TestScanner(t *testing.T) {
	for _, b := range bodies {
		t.Run(b.name, func(t *testing.T) {
			b.want.Bytes = int64(len(b.body))
			got, model := scan([]byte(b.body))
			if got != b.want || model != b.model {
				t.Errorf("got  %+v, model %q\nwant %+v, model %q", got, model, b.want, b.model)
			}
		})
	}
}

// check compares the scanner with the oracle, and with itself on the body split at
// every position or, for long bodies, at the given stride.
func check(t *testing.T, data []byte, stride int) {
	t.Helper()
	got, model := scan(data)
	want, wantModel := oracle(data)
	switch {
	case got.Malformed && !want.Malformed && depth(data) > MaxDepth:
	case got.Malformed != want.Malformed:
		t.Fatalf("malformed is %v, want %v", got.Malformed, want.Malformed)
	case !got.Malformed && utf8.Valid(data) && (got != want || model != wantModel):
		// encoding/json rewrites invalid UTF-8, so it is no oracle for it.
		t.Fatalf("got  %+v, model %q\nwant %+v, model %q\nbody %q", got, model, want, wantModel, data)
	}
	for cut := 1; cut < len(data); cut += stride {
		var s Scanner
		s.Write(data[:cut])
		s.Write(data[cut:])
		if c := s.Count(); c != got || string(s.Model()) != model {
			t.Fatalf("cut at %d: got %+v, model %q; whole: %+v, model %q", cut, c, s.Model(), got, model)
		}
	}
	var s Scanner
	for i := range data {
		s.Write(data[i : i+1])
	}
	if c := s.Count(); c != got || string(s.Model()) != model {
		t.Fatalf("byte by byte: got %+v, model %q; whole: %+v, model %q", c, s.Model(), got, model)
	}
}

func TestOracleAgrees(t *testing.T) {
	for _, b := range bodies {
		check(t, []byte(b.body), 1)
	}
	// Random documents of the relevant words, so that they are nested and repeated in
	// unusual ways.
	r := rand.New(rand.NewPCG(1, 2))
	for range testkit.Size(600, 1500) {
		check(t, []byte(document(r, 0)), 7)
	}
}

// texts calls f with every text of at most n of the parts.
func texts(parts []string, n int, f func(string)) {
	var more func(text string, n int)
	more = func(text string, n int) {
		f(text)
		for _, p := range parts {
			if n > 0 {
				more(text+p, n-1)
			}
		}
	}
	more("", n)
}

// TestEveryShortText checks every number, list, nesting and literal that is short, and every
// escape, sound or not, where it counts and where it does not.
func TestEveryShortText(t *testing.T) {
	in := func(contexts ...string) func(string) {
		return func(text string) {
			for _, c := range contexts {
				check(t, []byte(strings.Replace(c, "%", text, 1)), 1)
			}
		}
	}
	n := testkit.Size(3, 4)
	texts([]string{"0", "1", "9", "-", "+", ".", "e", "E", ":"}, n, in(`%`, `{"prompt":[%]}`))
	texts([]string{"0", "9", "/", ",", " ", "]"}, 4, in(`{"prompt":[%,1]}`, `{"prompt":[[%,1]]}`))
	texts([]string{"{", "}", "[", "]", ",", ":", `"a"`, "1"}, n, in(`%`, `[%`, `{"a":%`))
	for _, limit := range []string{"9223372036854775806", "9223372036854775807", "9223372036854775808", "05", "-0", "1.5e+3", "1.25e3", "1e2e3", "1.+5", "1e:5", "1e-5"} {
		in(`{"prompt":"","max_tokens":%}`)(limit)
	}
	for _, word := range []string{"true", "false", "null"} {
		for i := range word {
			in(`%`, `[%]`)(word[:i] + "x" + word[i+1:])
			in(`%`, `[%]`)(word[:i])
		}
	}
	strs := in(`{"prompt":"a%b"}`, `{"model":"%"}`, `{"%prompt":"a"}`)
	for c := range 128 {
		strs(`\` + string(rune(c)))
		strs(`\u00` + string(rune(c)) + "0")
	}
	halves := []string{`\u0000`, `\u0041`, `\ud7ff`, `\ud800`, `\uD8FF`, `\udbff`, `\udc00`, `\uDEAD`, `\udfff`, `\ue000`, `\uffff`}
	texts(halves, 2, strs)
}

// document returns a random JSON value, sometimes with a fault.
func document(r *rand.Rand, depth int) string {
	keys := []string{"model", "prompt", "messages", "input", "content", "text", "tools", "tool_calls", "function_call", "system", "max_tokens", "max_completion_tokens", "query", "documents", "text_1", "text_2", "x", `\u0074ext`}
	strs := []string{`""`, `"a"`, `"hello world, this is longer"`, `"\n\t\"\\"`, `"\u00e9\ud83d\ude00"`, `"\ud83d"`, `"\ude00\ud83d\ud83d\ude00"`, `"Zürich 中文 😀"`}
	blank := []string{"", "", "", " ", "\n\t "}[r.IntN(5)]
	if r.IntN(400) == 0 {
		return []string{"", "nul", "01", "1.", `"\x"`, "]", `"`, "-", `"\u12g4"`}[r.IntN(9)]
	}
	pick := r.IntN(10)
	if depth == 0 {
		pick = 9
	}
	var b strings.Builder
	b.WriteString(blank)
	switch {
	case depth > 6 || pick < 3:
		b.WriteString(strs[r.IntN(len(strs))])
	case pick < 5:
		b.WriteString([]string{"0", "17", "-1", "2.5", "1e9", "99999999999999999999", "null", "true", "false"}[r.IntN(9)])
	case pick < 7:
		b.WriteString("[")
		for i := range r.IntN(4) {
			if i > 0 {
				b.WriteString(",")
			}
			b.WriteString(document(r, depth+1))
		}
		b.WriteString("]")
	default:
		b.WriteString("{")
		for i := range r.IntN(5) {
			if i > 0 {
				b.WriteString(",")
			}
			fmt.Fprintf(&b, `%s"%s"%s:`, blank, keys[r.IntN(len(keys))], blank)
			b.WriteString(document(r, depth+1))
		}
		b.WriteString("}")
	}
	b.WriteString(blank)
	return b.String()
}

func FuzzScanner(f *testing.F) {
	for _, b := range bodies {
		f.Add([]byte(b.body))
	}
	r := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		f.Add([]byte(document(r, 0)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		check(t, data, max(1, len(data)/16))
	})
}

func TestResetForgets(t *testing.T) {
	var s Scanner
	s.Write([]byte(`{"model":"m","prompt":["x",{`))
	s.Reset()
	s.Write([]byte(`{}`))
	if got := s.Count(); got != (Count{Bytes: 2}) || len(s.Model()) != 0 {
		t.Errorf("after Reset: %+v, model %q", got, s.Model())
	}
}

// chat returns a chat body of about n bytes of prose with a newline at the end of each
// line.
func chat(n int) []byte {
	text := strings.Repeat("The quick brown fox jumps over the lazy dog, and \"so\" on and on;\n", n/60+1)[:max(n-100, 1)]
	body, err := json.Marshal(map[string]any{"model": "m", "max_tokens": 100, "messages": []any{map[string]string{"role": "user", "content": text}}})
	if err != nil {
		panic("internal error: " + err.Error())
	}
	return body
}

// ids returns a completion body of about n bytes of token ids.
func ids(n int) []byte {
	return []byte(`{"model":"m","prompt":[` + strings.Repeat("101, 20417, 7,", n/14) + `1]}`)
}

func TestScannerAllocatesNothing(t *testing.T) {
	var s Scanner
	for _, body := range [][]byte{chat(64 << 10), ids(64 << 10)} {
		var c Count
		if n := testing.AllocsPerRun(20, func() {
			s.Reset()
			s.Write(body[:len(body)/2])
			s.Write(body[len(body)/2:])
			c = s.Count()
		}); n != 0 || c.Malformed {
			t.Errorf("%v allocations for %+v, want none", n, c)
		}
	}
}

func BenchmarkScanner(b *testing.B) {
	for _, size := range []int{200, 220 << 10, 2 << 20} {
		for name, body := range map[string][]byte{"text": chat(size), "ids": ids(size)} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				var s Scanner
				for b.Loop() {
					s.Reset()
					s.Write(body)
				}
			})
		}
	}
}
