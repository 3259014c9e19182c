package processes

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// evil marks what an engine must not see.
const evil = "evil"

// guardedEngine answers as an emulated engine does, and remembers where requests had the mark. Some words
// in the body of a request change that: it never answers "hang", answers "flood 600" with 600 KiB in some
// events, answers "redirect" with a Location that has the mark, and "death" ends it until revive.
type guardedEngine struct {
	emulator http.Handler
	mu       sync.Mutex
	seen     []string

	hanging, floods atomic.Int64 // requests that hang now, and floods so far
	dead            atomic.Bool
}

// floodWords finds how many KiB a request asks for.
var floodWords = regexp.MustCompile(`flood (\d+)`)

func (e *guardedEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if e.dead.Load() {
		panic(http.ErrAbortHandler)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	has := func(text string) bool { return strings.Contains(strings.ToLower(text), evil) }
	var found []string
	if has(r.RequestURI) {
		found = append(found, r.Method+" "+r.RequestURI)
	}
	if has(r.Host) {
		found = append(found, "host")
	}
	for name, values := range r.Header {
		if has(name) || slices.ContainsFunc(values, has) {
			found = append(found, strings.ToLower(name))
		}
	}
	if has(string(body)) {
		found = append(found, fmt.Sprintf("the body of %s %s", r.Method, r.URL.Path))
	}
	e.mu.Lock()
	e.seen = append(e.seen, found...)
	e.mu.Unlock()
	switch words := floodWords.FindSubmatch(body); {
	case bytes.Contains(body, []byte("hang")):
		e.hanging.Add(1)
		defer e.hanging.Add(-1)
		<-r.Context().Done() // until the front end gives the request up
		return
	case bytes.Contains(body, []byte("death")):
		e.dead.Store(true)
		panic(http.ErrAbortHandler)
	case bytes.Contains(body, []byte("redirect")):
		w.Header().Set("Location", "http://evil.example/")
		w.WriteHeader(http.StatusTemporaryRedirect)
		return
	case words != nil:
		e.floods.Add(1)
		w.Header().Set("Content-Type", "text/event-stream")
		event := fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"text\":%q,\"token_ids\":[1]}]}\n\n", strings.Repeat("x", 32<<10))
		for n, _ := strconv.Atoi(string(words[1])); n > 0; n -= 32 {
			if _, err := io.WriteString(w, event); err != nil {
				return
			}
		}
		io.WriteString(w, "data: [DONE]\n\n")
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	e.emulator.ServeHTTP(w, r)
}

// take returns where marks were seen since the last call.
func (e *guardedEngine) take() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := e.seen
	e.seen = nil
	slices.Sort(out)
	return slices.Compact(out)
}
