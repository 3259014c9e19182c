package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeSource counts its calls.
type fakeSource struct {
	views  atomic.Int64
	view   func() View // nil: an empty one
	whatIf func(context.Context, Question) (Answer, error)
}

func (s *fakeSource) View(now time.Time) View {
	s.views.Add(1)
	v := View{}
	if s.view != nil {
		v = s.view()
	}
	return v
}

func (s *fakeSource) WhatIf(ctx context.Context, q Question) (Answer, error) { return s.whatIf(ctx, q) }

func newConsole(t *testing.T, s Source) *Console {
	t.Helper()
	return testkit.Must(New(Config{Source: s, Logger: new(testkit.Log).Logger()}))
}

// ask sends a request to the handler. The edit changes the request.
func ask(c *Console, target string, edit func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	if edit != nil {
		edit(r)
	}
	w := httptest.NewRecorder()
	c.ServeHTTP(w, r)
	return w
}

func TestConfig(t *testing.T) {
	for _, cfg := range []Config{{}, {Source: &fakeSource{}, Interval: -1}, {Source: &fakeSource{}, Viewers: -1}, {Source: &fakeSource{}, WriteTimeout: -1}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}

// TestPage checks that every file that the page and its modules name is served, with the policy
// that forbids everything else.
func TestPage(t *testing.T) {
	c := newConsole(t, &fakeSource{})
	kinds := map[string]string{".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
	named := regexp.MustCompile(`(?:"|from ")(?:/console/|\./)([a-z]+\.(?:js|css|svg))"`)
	seen := map[string]bool{}
	for queue := []string{"/"}; len(queue) > 0; queue = queue[1:] {
		file := queue[0]
		w := ask(c, file, nil)
		if w.Code != http.StatusOK || w.Body.Len() == 0 {
			t.Fatalf("%s: %d", file, w.Code)
		}
		ext := path.Ext(file)
		if file == "/" {
			ext = ".html"
		}
		if got := w.Header().Get("Content-Type"); !strings.HasPrefix(got, kinds[ext]) {
			t.Errorf("%s: content type %q", file, got)
		}
		csp := w.Header().Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self';", "style-src 'self';", "frame-ancestors 'none'", "require-trusted-types-for 'script'"} {
			if !strings.Contains(csp, want) {
				t.Errorf("%s: policy %q lacks %q", file, csp, want)
			}
		}
		for _, m := range named.FindAllStringSubmatch(w.Body.String(), -1) {
			if next := "/console/" + m[1]; !seen[next] {
				seen[next] = true
				queue = append(queue, next)
			}
		}
		again := ask(c, file, func(r *http.Request) { r.Header.Set("If-None-Match", w.Header().Get("ETag")) })
		if again.Code != http.StatusNotModified {
			t.Errorf("%s: %d for a browser that has it", file, again.Code)
		}
	}
	entries := testkit.Must(web.ReadDir("web"))
	if len(seen)+1 != len(entries) {
		t.Errorf("the page names %v, and %d files are embedded", seen, len(entries))
	}
	for _, missing := range []string{"/console/", "/console/none.js", "/console/../console.go", "/other"} {
		if w := ask(c, missing, nil); w.Code == http.StatusOK {
			t.Errorf("%s: %d", missing, w.Code)
		}
	}
}

// TestPageIsSelfContained checks that the files load nothing from elsewhere, have no inline script
// or style, which the policy would block, and parse no text as HTML.
func TestPageIsSelfContained(t *testing.T) {
	inHTML := regexp.MustCompile(`(?i)\sstyle=|\son[a-z]+=|<style|<script(?:[^>]*)>\s*[^<\s]`)
	anywhere := regexp.MustCompile(`(?i)innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|\beval\(|new Function|setTimeout\("|@import|url\(`)
	elsewhere := regexp.MustCompile(`(?i)(?:https?:)?//[a-z0-9-]+\.[a-z]`)
	files := testkit.Must(readAssets())
	for name, f := range files {
		if f.kind == "" {
			t.Errorf("%s: no media type", name)
		}
		if path.Ext(name) == ".html" && inHTML.Match(f.content) {
			t.Errorf("%s: inline: %q", name, inHTML.Find(f.content))
		}
		if anywhere.Match(f.content) {
			t.Errorf("%s: %q", name, anywhere.Find(f.content))
		}
		rest := bytes.ReplaceAll(f.content, []byte("http://www.w3.org/2000/svg"), nil) // a name, which nothing loads
		if elsewhere.Match(rest) {
			t.Errorf("%s: %q", name, elsewhere.Find(rest))
		}
	}
}

// TestOtherSites checks that pages of other sites get no events and no plans, and that the page's
// own and programs do.
func TestOtherSites(t *testing.T) {
	c := newConsole(t, &fakeSource{whatIf: func(context.Context, Question) (Answer, error) { return Answer{}, nil }})
	for _, tc := range []struct {
		header, value string
		want          int
	}{
		{"", "", http.StatusOK},
		{"Origin", "http://example.com", http.StatusOK}, // the Host of the request
		{"Origin", "http://evil.example", http.StatusForbidden},
		{"Origin", "http://example.com:81", http.StatusForbidden},
		{"Origin", "null", http.StatusForbidden},
		{"Origin", "::", http.StatusForbidden},
		{"Sec-Fetch-Site", "same-origin", http.StatusOK},
		{"Sec-Fetch-Site", "none", http.StatusOK},
		{"Sec-Fetch-Site", "same-site", http.StatusForbidden},
		{"Sec-Fetch-Site", "cross-site", http.StatusForbidden},
	} {
		w := ask(c, "/console/whatif", func(r *http.Request) {
			if tc.header != "" {
				r.Header.Set(tc.header, tc.value)
			}
		})
		if w.Code != tc.want {
			t.Errorf("%s: %s: %d, want %d", tc.header, tc.value, w.Code, tc.want)
		}
	}
	left, leave := context.WithCancel(context.Background())
	leave() // events that are not refused end at once
	if w := ask(c, "/console/events", func(r *http.Request) {
		r.Header.Set("Sec-Fetch-Site", "cross-site")
		*r = *r.WithContext(left)
	}); w.Code != http.StatusForbidden {
		t.Errorf("events: %d", w.Code)
	}
}

func TestWhatIfQuestion(t *testing.T) {
	var asked Question
	c := newConsole(t, &fakeSource{whatIf: func(_ context.Context, q Question) (Answer, error) {
		asked = q
		return Answer{Cost: 1.5}, nil
	}})
	w := ask(c, "/console/whatif?model=m&replicas=12&mix=chat&rate=2.5&iteration_ms=40", nil)
	if want := (Question{"m", 12, "chat", 2.5, 0.04}); w.Code != http.StatusOK || asked != want || !strings.Contains(w.Body.String(), `"cost":1.5`) {
		t.Errorf("%d %s: asked %+v, want %+v", w.Code, w.Body, asked, want)
	}
	if ask(c, "/console/whatif?replicas=&rate=", nil); asked != (Question{}) {
		t.Errorf("empty fields: %+v", asked)
	}
	for query, field := range map[string]string{
		"replicas=0": "replicas", "replicas=-1": "replicas", "replicas=1.5": "replicas", "replicas=10001": "replicas", "replicas=many": "replicas",
		"rate=0": "rate", "rate=NaN": "rate", "rate=Inf": "rate", "rate=-2": "rate", "rate=2e6": "rate",
		"iteration_ms=0": "iteration_ms", "iteration_ms=60001": "iteration_ms", "iteration_ms=x": "iteration_ms",
		"replicas=1&replicas=2": "replicas", "tokens=1": `"tokens"`, "%zz": "",
	} {
		w := ask(c, "/console/whatif?"+query, nil)
		var got struct{ Field, Error string }
		testkit.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
		if w.Code != http.StatusBadRequest || got.Field != field || !strings.HasPrefix(got.Error, field) {
			t.Errorf("%s: %d, %+v", query, w.Code, got)
		}
	}
	if w := ask(c, "/console/whatif?model="+strings.Repeat("m", maxQuery), nil); w.Code != http.StatusRequestURITooLong {
		t.Errorf("a long query: %d", w.Code)
	}
}

func FuzzQuestion(f *testing.F) {
	f.Add("model=m&replicas=12&mix=chat&rate=2.5&iteration_ms=40")
	f.Add("rate=1e-320&iteration_ms=0x1p3")
	f.Fuzz(func(t *testing.T, query string) {
		q, bad := parseQuestion(query)
		if bad != nil {
			if bad.Text == "" {
				t.Errorf("%q is refused without a reason", query)
			}
			return
		}
		if q.Replicas < 0 || q.Replicas > maxReplicas || !(q.Rate >= 0 && q.Rate <= maxRate) || !(q.Iteration >= 0 && q.Iteration <= maxIteration) {
			t.Errorf("%q is decoded as %+v", query, q)
		}
	})
}

// TestWhatIfFailures checks the answers to questions without a plan.
func TestWhatIfFailures(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want int
		text string
	}{
		{&FieldError{"rate", "too high"}, http.StatusUnprocessableEntity, `{"field":"rate","error":"rate: too high"}`},
		{fmt.Errorf("planning: %w", context.DeadlineExceeded), http.StatusServiceUnavailable, "no plan within 5s"},
		{errors.New("the planner is broken"), http.StatusInternalServerError, "the planner is broken"},
	} {
		c := newConsole(t, &fakeSource{whatIf: func(context.Context, Question) (Answer, error) { return Answer{}, tc.err }})
		if w := ask(c, "/console/whatif", nil); w.Code != tc.want || !strings.Contains(w.Body.String(), tc.text) {
			t.Errorf("%v: %d %s", tc.err, w.Code, w.Body)
		}
	}
}

// TestOneWhatIfAtATime checks that a second question is refused while a first one is computed, that
// the first one has a deadline, and that the next one is answered.
func TestOneWhatIfAtATime(t *testing.T) {
	computing, done := make(chan struct{}), make(chan struct{})
	c := newConsole(t, &fakeSource{whatIf: func(ctx context.Context, _ Question) (Answer, error) {
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > whatIfTimeout {
			t.Errorf("deadline %v, %v", deadline, ok)
		}
		computing <- struct{}{}
		<-done
		return Answer{}, nil
	}})
	first := make(chan int)
	go func() { first <- ask(c, "/console/whatif", nil).Code }()
	<-computing
	if w := ask(c, "/console/whatif", nil); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" {
		t.Errorf("meanwhile: %d", w.Code)
	}
	if w := ask(c, "/console/whatif?replicas=x", nil); w.Code != http.StatusBadRequest {
		t.Errorf("a mistake meanwhile: %d", w.Code)
	}
	close(done)
	if code := <-first; code != http.StatusOK {
		t.Errorf("the first: %d", code)
	}
	go func() { <-computing }()
	if w := ask(c, "/console/whatif", nil); w.Code != http.StatusOK {
		t.Errorf("afterwards: %d", w.Code)
	}
}
