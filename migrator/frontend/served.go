package frontend

import (
	"net/http"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/cascadeinfer/cascade/policies"
)

// Served is how fast a client was served, whatever became of its request on the way:
// migrations and rescues are included.
type Served struct {
	// FirstToken is the time from the request's arrival to the first event of its answer.
	FirstToken time.Duration
	// PerToken is the mean time between the tokens after the first; 0 if there were none.
	PerToken time.Duration
	// Span is that of the request; it is not valid without tracing.
	Span trace.SpanContext
}

// reportServed reports a stream that has ended, whose answer began at first.
func (s *Stream) reportServed(first time.Time) {
	out := Served{FirstToken: first.Sub(s.begun), Span: trace.SpanContextFromContext(s.ctx)}
	if n := s.Request().Output; n > 1 {
		out.PerToken = time.Since(first) / time.Duration(n-1)
	}
	s.server.service.add(out)
	if report := s.server.cfg.OnServed; report != nil {
		report(out)
	}
}

// Service counts how the clients of a front end were served since it started.
type Service struct {
	Failed               uint64 // requests that were answered with 5xx, or whose answer was cut
	FirstToken, PerToken policies.LatencyCounts
}

// serviceCounts counts a Service. Its methods may be called by several goroutines.
type serviceCounts struct {
	mu  sync.Mutex
	now Service
}

func (c *serviceCounts) add(s Served) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.FirstToken.Add(policies.Micros(s.FirstToken.Microseconds()))
	if s.PerToken > 0 {
		c.now.PerToken.Add(policies.Micros(s.PerToken.Microseconds()))
	}
}

// addStatus counts an engine's answer as a failure if its status is 5xx.
func (c *serviceCounts) addStatus(status int) {
	if status >= http.StatusInternalServerError {
		c.addFailure()
	}
}

// addFailure counts an answer with 5xx, or one that was cut.
func (c *serviceCounts) addFailure() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.Failed++
}

func (c *serviceCounts) read() Service {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}
