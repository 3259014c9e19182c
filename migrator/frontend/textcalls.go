package frontend

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
)

// Bounds of the calls for which the engine's HTTP server tokenizes or renders text. A megabyte takes it about a
// second, and several megabytes of memory, while it serves all streams.
const (
	maxText        = 4 << 20 // bytes of a body
	maxTextCalls   = 8       // that the engine works on at once; half as many from one tenant
	maxTenantCalls = 32      // of one tenant, from their arrival until their answer has been read
	maxTextWait    = time.Second
)

// textCalls bounds the calls for which the engine's HTTP server tokenizes or renders text.
type textCalls struct {
	slots     chan struct{}
	perTenant int

	mu      sync.Mutex
	tenants map[string]*tenantCalls // those that have calls
}

type tenantCalls struct {
	slots chan struct{}
	calls int
}

// newTextCalls returns the bounds of a server. byTenant says that requests name their tenant; else all are of one.
func newTextCalls(byTenant bool) *textCalls {
	c := &textCalls{slots: make(chan struct{}, maxTextCalls), perTenant: maxTextCalls, tenants: make(map[string]*tenantCalls)}
	if byTenant {
		c.perTenant /= 2
	}
	return c
}

// enter waits until the engine may get a tenant's call, and returns false if there are too many calls. The caller
// calls answered when the answer begins, and leave when it ends.
func (c *textCalls) enter(ctx context.Context, tenant string) (answered, leave func(), ok bool) {
	c.mu.Lock()
	t := c.tenants[tenant]
	if t == nil {
		t = &tenantCalls{slots: make(chan struct{}, c.perTenant)}
		c.tenants[tenant] = t
	}
	if t.calls == maxTenantCalls {
		c.mu.Unlock()
		return nil, nil, false
	}
	t.calls++
	c.mu.Unlock()

	var taken []chan struct{}
	answered = sync.OnceFunc(func() {
		for _, slots := range taken {
			<-slots
		}
	})
	leave = func() {
		answered()
		c.mu.Lock()
		defer c.mu.Unlock()
		if t.calls--; t.calls == 0 {
			delete(c.tenants, tenant)
		}
	}
	late := time.NewTimer(maxTextWait)
	defer late.Stop()
	for _, slots := range []chan struct{}{t.slots, c.slots} {
		select {
		case slots <- struct{}{}:
			taken = append(taken, slots)
			continue
		case <-ctx.Done():
		case <-late.C:
		}
		leave()
		return nil, nil, false
	}
	return answered, leave, true
}

// passText passes a call to the engine, within the bounds of textCalls.
func (srv *Server) passText(w http.ResponseWriter, r *http.Request, body []byte) {
	if len(body) > maxText {
		writeProblem(w, openai.Problem{Status: http.StatusRequestEntityTooLarge, Message: "the request body has more than " + strconv.Itoa(maxText) + " bytes, which is the limit of this path"})
		return
	}
	answered, leave, ok := srv.textCalls.enter(r.Context(), srv.admission.tenantOf(r.Header))
	if !ok {
		w.Header().Set("Retry-After", "1")
		writeProblem(w, openai.Problem{Status: http.StatusTooManyRequests, Kind: "RateLimitError", Message: "too many calls that tokenize or render text are in progress; send it again after 1 s"})
		return
	}
	defer leave()
	srv.passUncounted(w, r, body, answered)
}
