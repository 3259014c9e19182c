package stock

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// answer is what a client reads, as far as two answers to one request should be equal.
type answer struct {
	Status      int
	ContentType string
	Body        any // JSON, or a text; of a stream, what its events have in all
}

// ask sends a request and reads the answer.
func (x exchange) ask(client *http.Client, base string) (answer, error) {
	req, err := http.NewRequest(x.method, base+x.path, bytes.NewReader(x.body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("content-type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	out := answer{Status: resp.StatusCode}
	out.ContentType, _, _ = mime.ParseMediaType(resp.Header.Get("content-type"))
	if out.ContentType != "text/event-stream" {
		out.Body = decode(body)
		return out, err
	}
	var events []any
	for event := range strings.SplitSeq(strings.TrimSuffix(string(body), "\n\n"), "\n\n") {
		events = append(events, decode([]byte(strings.TrimPrefix(event, "data: "))))
	}
	out.Body = merge(events)
	return out, err
}

// decode returns the JSON value of a text, or the text.
func decode(text []byte) (v any) {
	if err := json.Unmarshal(text, &v); err != nil {
		return string(text)
	}
	return v
}

// merge joins the events of a stream: how many tokens an event has depends on how busy the engine's host is. The texts
// and lists of a choice's events are concatenated; of other values, the last one stays, and that of a request for
// usage with every event.
func merge(events []any) any {
	out := map[string]any{}
	choices := map[string]any{}
	for _, e := range events {
		event, ok := e.(map[string]any)
		if !ok {
			out["last"] = e // [DONE]
			continue
		}
		list, _ := event["choices"].([]any)
		for _, c := range list {
			choice, _ := c.(map[string]any)
			index := fmt.Sprint(choice["index"])
			choices[index] = join(choices[index], choice)
		}
		for name, v := range event {
			if name != "choices" && v != nil {
				out[name] = v
			}
		}
	}
	out["choices"] = choices
	return out
}

// texts are the fields of an event that continue the one before.
var texts = []string{"text", "content", "reasoning", "reasoning_content", "arguments"}

// join appends the values of a stream's event to what came before.
func join(before any, event map[string]any) map[string]any {
	out, _ := before.(map[string]any)
	if out == nil {
		out = map[string]any{}
	}
	for name, v := range event {
		switch v := v.(type) {
		case map[string]any:
			out[name] = join(out[name], v)
		case []any:
			list, _ := out[name].([]any)
			out[name] = append(list, v...)
		case string:
			if text, ok := out[name].(string); ok && slices.Contains(texts, name) {
				v = text + v
			}
			out[name] = v
		default:
			if v != nil || out[name] == nil {
				out[name] = v
			}
		}
	}
	return out
}

// differences returns the paths at which two answers differ, with both values. Indices of lists are left out.
func differences(direct, through answer) map[string]string {
	out := map[string]string{}
	add := func(path string, a, b any) {
		if out[path] == "" {
			out[path] = show(a, b)
		}
	}
	var walk func(path string, a, b any)
	walk = func(path string, a, b any) {
		switch a := a.(type) {
		case map[string]any:
			b, ok := b.(map[string]any)
			if !ok {
				break
			}
			for name := range b {
				if _, ok := a[name]; !ok {
					add(path+"."+name+" added", "", b[name])
				}
			}
			for name, v := range a {
				if other, ok := b[name]; ok {
					walk(path+"."+name, v, other)
				} else {
					add(path+"."+name+" missing", v, "")
				}
			}
			return
		case []any:
			b, ok := b.([]any)
			if !ok {
				break
			}
			if len(a) != len(b) {
				add(path+" length", len(a), len(b))
			}
			for i := range min(len(a), len(b)) {
				walk(path, a[i], b[i])
			}
			return
		}
		if !reflect.DeepEqual(a, b) {
			add(path, a, b)
		}
	}
	walk("status", direct.Status, through.Status)
	walk("content-type", direct.ContentType, through.ContentType)
	walk("body", direct.Body, through.Body)
	return out
}

// show returns two values, from where their texts begin to differ.
func show(a, b any) string {
	x, y := fmt.Sprint(a), fmt.Sprint(b)
	i := 0
	for i < min(len(x), len(y)) && x[i] == y[i] {
		i++
	}
	i = max(0, i-30)
	return fmt.Sprintf("%.200q, through Cascade %.200q", x[i:], y[i:])
}

// rule explains a difference.
type rule struct {
	where string // matches "METHOD PATH options: difference"
	why   string
	// always is true for a difference that every run has.
	always bool
	re     *regexp.Regexp
	seen   int
}

// vllmRules are all differences between the answers of vLLM and those through Cascade.
func vllmRules() []*rule {
	return compileRules([]*rule{
		{where: `: body(\.id|\.output\.id|\.data\.permission\.id)$`, why: "every answer has an id of its own", always: true},
		{where: `: body\.created(_at)?$`, why: "the second in which the request was received"},
		{where: `: body\.usage(\.prompt_tokens_details|\.input_tokens_details)?\.(cached_tokens|created_cache_tokens|cache_read_input_tokens)( added| missing)?$`, why: "what the replica has cached by then, which earlier requests decide"},
		{where: `/completions (no JSON|a list|empty): body\.error\.(message|param|type)$`, why: "the front end refuses a body that is not an object before the engine reads it", always: true},
		{where: `/chat/completions no messages: body\.error\.message$`, why: "the engine counts the fields of the body, to which the front end adds some", always: true},
		{where: `^GET /v1/(chat/)?completions GET: body\.(detail missing|error added)$`, why: "the front end refuses the method, in OpenAI's form", always: true},
	})
}

func compileRules(all []*rule) []*rule {
	for _, r := range all {
		r.re = regexp.MustCompile(r.where)
	}
	return all
}

// testAnswers compares the answers of an engine itself with those through Cascade field by field: every difference
// has a rule that explains it. The first two are for ids and times. fatal is
// the name of exchanges that would kill the engine, "" for none.
func testAnswers(t *testing.T, f *fleet, rules []*rule, fatal string) {
	equal, all := 0, slices.DeleteFunc(exchanges(), func(x exchange) bool { return x.name == fatal })
	if len(all) < 600 {
		t.Errorf("%d requests, want 600 at least", len(all))
	}
	for _, x := range all {
		f.HTTP.CloseIdleConnections() // SGLang resets a connection after an answer of 500
		direct, err := x.ask(f.HTTP, f.engines[0].URL)
		testkit.NoError(t, err)
		through, err := x.ask(f.HTTP, f.DataPlane)
		testkit.NoError(t, err)
		found := differences(direct, through)
		if len(found) == 0 {
			equal++
		}
		own := true // the only differences are ids and times
		for _, path := range slices.Sorted(maps.Keys(found)) {
			what := fmt.Sprintf("%s %s %s: %s", x.method, x.path, x.name, path)
			i := slices.IndexFunc(rules, func(r *rule) bool { return r.re.MatchString(what) })
			if i < 0 {
				t.Errorf("%s\nthe engine itself: %s\nrequest: %.300s", what, found[path], x.body)
				own = false
				continue
			}
			rules[i].seen++
			own = own && i < 2
		}
		if len(found) > 0 && own {
			equal++
		}
	}
	t.Logf("%d requests, %d answers equal up to id and time; differences:", len(all), equal)
	for _, r := range rules {
		t.Logf("%4d × %s: %s", r.seen, r.where, r.why)
		if r.always && r.seen == 0 {
			t.Errorf("no difference at %s: remove the rule", r.where)
		}
	}
}
