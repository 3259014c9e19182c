package stock

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestDifferences: how a stream is divided into events is no difference; everything else is.
func TestDifferences(t *testing.T) {
	stream := func(events ...string) answer {
		var list []any
		for _, e := range events {
			list = append(list, decode([]byte(e)))
		}
		return answer{Status: 200, ContentType: "text/event-stream", Body: merge(list)}
	}
	plain := func(status int, body string) answer {
		return answer{Status: status, ContentType: "application/json", Body: decode([]byte(body))}
	}
	whole := stream(`{"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}`,
		`{"id": "x", "choices": [{"index": 0, "delta": {"content": "abab"}, "token_ids": [1, 2], "finish_reason": "length"}]}`, `{"id": "x", "choices": [], "usage": {"total_tokens": 3}}`, `[DONE]`)
	divided := func(last, done string) answer {
		return stream(`{"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}`,
			`{"id": "x", "choices": [{"index": 0, "delta": {"content": "ab"}, "token_ids": [1], "finish_reason": null}]}`, last,
			`{"id": "x", "choices": [], "usage": {"total_tokens": 3}}`, done)
	}
	const last = `{"id": "x", "choices": [{"index": 0, "delta": {"content": "ab"}, "token_ids": [2], "finish_reason": "length"}]}`
	for _, c := range []struct {
		name     string
		a, b     answer
		expected string
	}{
		{"divided", whole, divided(last, `[DONE]`), ""},
		{"other text", whole, divided(strings.Replace(last, "ab", "ba", 1), `[DONE]`), "body.choices.0.delta.content"},
		{"other id of a token", whole, divided(strings.Replace(last, "[2]", "[3]", 1), `[DONE]`), "body.choices.0.token_ids"},
		{"missing id of a token", whole, divided(strings.Replace(last, "[2]", "[]", 1), `[DONE]`), "body.choices.0.token_ids length"},
		{"other reason", whole, divided(strings.Replace(last, "length", "stop", 1), `[DONE]`), "body.choices.0.finish_reason"},
		{"cut", whole, divided(last, `{"error": {}}`), "body.error added, body.last missing"},
		{"status", plain(200, `{}`), plain(400, `{}`), "status"},
		{"fields", plain(200, `{"a": 1, "b": [{"c": 1}]}`), plain(200, `{"b": [{"c": 2}], "d": 1}`), "body.a missing, body.b.c, body.d added"},
		{"kinds", plain(200, `{"a": {}}`), plain(200, `{"a": []}`), "body.a"},
	} {
		if got := strings.Join(slices.Sorted(maps.Keys(differences(c.a, c.b))), ", "); got != c.expected {
			t.Errorf("%s: %q, want %q", c.name, got, c.expected)
		}
	}
}
