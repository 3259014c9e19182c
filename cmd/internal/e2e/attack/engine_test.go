package attack

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/clienttest"
)

// evil marks what an engine must not see.
const evil = "evil"

// guardedEngine answers as an emulated engine does, and remembers where requests had the mark. It
// never answers a request that has the word "hang".
type guardedEngine struct {
	emulator http.Handler
	mu       sync.Mutex
	seen     []string
}

func (e *guardedEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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
	if bytes.Contains(body, []byte("hang")) {
		<-r.Context().Done() // until the front end gives the request up
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

// model is the model of the fleet.
const model = clienttest.Model
