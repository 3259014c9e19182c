package emulator

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	wire "github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// When a client disconnects, its request ends, frozen or not.
func TestFrozenClientGone(t *testing.T) {
	s := serve(t, Config{Speed: 20})
	answer, cancel := s.run(t, "a", long)
	s.table(t, "a")
	s.freeze(t, "a")
	cancel()
	<-answer
	s.waitForStats(t, "the client has gone", empty)
	if err := s.call(wire.Call{Op: wire.Thaw, Leg: "a"}); code(err) != wire.NotFound {
		t.Error(err)
	}
}

// A dropped request ends without an end marker; if it has not begun to answer, it ends with an
// error.
func TestDrop(t *testing.T) {
	s := serve(t, Config{Speed: 20})
	for name, body := range map[string]string{"stream": long, "whole": strings.Replace(long, `,"stream":true`, "", 1)} {
		w := &slowWriter{ResponseRecorder: httptest.NewRecorder(), begun: make(chan struct{}), gone: make(chan struct{})}
		close(w.gone)
		r := post("/v1/completions", body)
		r.Header.Set(legHeader, name)
		answered := make(chan struct{})
		go func() { defer close(answered); s.Handler().ServeHTTP(w, r) }()
		s.table(t, name)
		if name == "stream" {
			<-w.begun
		}
		testkit.NoError(t, s.call(wire.Call{Op: wire.Drop, Leg: name}))
		<-answered
		switch {
		case name == "whole" && w.Code != http.StatusServiceUnavailable:
			t.Errorf("whole: %d %s", w.Code, w.Body)
		case name == "stream" && (w.Code != http.StatusOK || strings.Contains(w.Body.String(), "[DONE]") || strings.Contains(w.Body.String(), "error")):
			t.Errorf("stream: %d %s", w.Code, w.Body)
		}
		s.waitForStats(t, name, empty)
	}
}

// A leg belongs to one request until the answer is complete.
func TestLegsAreUnique(t *testing.T) {
	s := serve(t, Config{Speed: 20})
	answer, cancel := s.run(t, "a", long)
	s.table(t, "a")
	twice, _ := s.run(t, "a", long)
	if w := <-twice; w.Code != http.StatusConflict {
		t.Errorf("a second one: %d %s", w.Code, w.Body)
	}
	s.table(t, "a")
	cancel()
	<-answer
	again, _ := s.run(t, "a", `{"prompt":[1],"max_tokens":2}`)
	if w := <-again; w.Code != http.StatusOK {
		t.Errorf("after it has ended: %d %s", w.Code, w.Body)
	}
	endless, _ := s.run(t, strings.Repeat("x", wire.MaxName+1), long)
	if w := <-endless; w.Code != http.StatusBadRequest {
		t.Errorf("an endless name: %d", w.Code)
	}
}
