package publicapi

import (
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// judge returns the verdicts on a raw path: of the patterns, and of the endpoints on the
// path that a server decodes from it.
func judge(t testing.TB) func(raw string) (matched, covered bool) {
	var patterns []*regexp.Regexp
	for _, e := range Endpoints() {
		pattern, _ := Pattern(e.Path)
		patterns = append(patterns, regexp.MustCompile(`^(?:`+pattern+`)$`))
	}
	return func(raw string) (matched, covered bool) {
		for _, p := range patterns {
			matched = matched || p.MatchString(raw)
		}
		path, _, _ := strings.Cut(raw, "?")
		if decoded, err := url.PathUnescape(path); err == nil {
			for _, e := range Endpoints() {
				covered = covered || e.Covers(decoded)
			}
		}
		return matched, covered
	}
}

func TestPaths(t *testing.T) {
	judged := judge(t)
	for _, raw := range strings.Fields(`/v1/completions /v1/completions?x=/metrics /v1/models /v1/models/ /v1/models/org/name /v1/models/a..b /v1/models/...
		/v1/models/..a /v1/models/llama:8b@x /v1/models/a%3Ab%20c%40 /v1/responses/resp_1 /v1/responses/resp_1/cancel /health /ping`) {
		if matched, covered := judged(raw); !matched || !covered {
			t.Errorf("%s: the pattern says %v, the endpoints say %v", raw, matched, covered)
		}
	}
	for _, raw := range strings.Fields(`/ /v1 /metrics /load /pause /v1/completions/ /V1/completions /v1/completions;x /v1/models/../metrics /v1/models/.. /v1/models/.
		/v1/models/..;/metrics /v1/models/%2e%2e/metrics /v1/models/.%2e /v1/models//x /v1/models/a%5Cb /v1/models/a%00 /v1/models/a%3bb /v1/models/a%25b
		/v1/models/a%c0%ae /v1/models/%23 /v1/responses//cancel //v1/models v1/models /health/x * http://e/v1/models /v1/models/a\b /v1/models/a%zz /v1/models/x/y/z`) {
		if matched, covered := judged(raw); matched || covered {
			t.Errorf("%s: the pattern says %v, the endpoints say %v", raw, matched, covered)
		}
	}
}

// FuzzPattern checks that whatever the pattern matches is covered after it was decoded, and
// not decoded once more.
func FuzzPattern(f *testing.F) {
	for _, raw := range []string{"/v1/models/a%2Eb", "/v1/models/a/b?c", "/v1/responses/.../cancel", "/v1/models/%7e", "/v1/models/..a"} {
		f.Add(raw)
	}
	judged := judge(f)
	f.Fuzz(func(t *testing.T, raw string) {
		matched, covered := judged(raw)
		if matched && !covered {
			t.Errorf("%q matches, and is not covered", raw)
		}
	})
}

// TestKindsOfWork checks that every POST with an answer that takes long is of one kind, by which it is bounded.
func TestKindsOfWork(t *testing.T) {
	short := map[string]bool{"/v1/responses/*/cancel": true, "/ping": true}
	for _, e := range Endpoints() {
		if e.Body && !short[e.Path] && e.Text == e.Computed || short[e.Path] && (e.Text || e.Computed) || e.Generates && !e.Computed {
			t.Errorf("%s: %+v", e.Path, e)
		}
	}
}
