package replay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// Kind is how a request failed.
type Kind string

// The kinds of failures. A bad status has a kind of its own, "http" and the
// status code.
const (
	Connect    Kind = "connect"     // no response headers came
	Cut        Kind = "cut"         // the stream ended without [DONE]
	Malformed  Kind = "malformed"   // the response is not a stream of completion chunks
	ErrorEvent Kind = "error event" // the server sent an error inside the stream
	Timeout    Kind = "timeout"     // no end within Config.Timeout
	Cancelled  Kind = "cancelled"   // the run ended first
)

// failure is an error of a kind.
type failure struct {
	kind Kind
	err  error
}

func (f *failure) Error() string { return string(f.kind) + ": " + f.err.Error() }

func (f *failure) Unwrap() error { return f.err }

// errTimeout is the cause of a request's end after Config.Timeout.
var errTimeout = errors.New("no end within the timeout")

// The response headers of Cascade's routes that a record keeps.
const (
	stageHeader = "x-cascade-stage"
	epochHeader = "x-cascade-epoch"
)

// Record is what one request measured. Times are in seconds of wall time since the request's due time.
type Record struct {
	Index   int             `json:"index"`  // in the trace
	Due     float64         `json:"due"`    // since the run began
	Lag     float64         `json:"lag"`    // until the request was handed to the network stack
	Input   policies.Tokens `json:"input"`  // as the trace asks
	Output  policies.Tokens `json:"output"` // as the trace asks
	Status  int             `json:"status,omitempty"`
	Stage   string          `json:"stage,omitempty"` // response header x-cascade-stage
	Epoch   string          `json:"epoch,omitempty"` // response header x-cascade-epoch
	TTFT    float64         `json:"ttft,omitempty"`  // to the first token
	Last    float64         `json:"last,omitempty"`  // to the last token
	E2E     float64         `json:"e2e"`             // to the end of the response
	Tokens  int64           `json:"tokens"`          // received
	Prompt  int64           `json:"prompt,omitempty"`
	Cached  int64           `json:"cached,omitempty"`
	Error   Kind            `json:"error,omitempty"`
	Message string          `json:"message,omitempty"` // of the error
	// Waited is how long the connection of a failed request had been open or idle before it, in
	// seconds; 0 for a new connection. Failures after equal times point at an idle timeout of the
	// server or a proxy.
	Waited float64 `json:"waited,omitempty"`
}

// TPOT returns the mean time between tokens after the first, in seconds, or false for answers of fewer
// than two tokens.
func (r Record) TPOT() (float64, bool) {
	if r.Tokens < 2 {
		return 0, false
	}
	return (r.Last - r.TTFT) / float64(r.Tokens-1), true
}

// Truncated reports whether an answer ended properly but shorter than requested.
func (r Record) Truncated() bool {
	return r.Error == "" && r.Tokens < int64(r.Output)
}

// send sends request i and returns its record.
func (r *Replay) send(ctx context.Context, i int) Record {
	request := r.cfg.Requests[i]
	due := r.due(i)
	since := func(t time.Time) float64 { return t.Sub(due).Seconds() }
	record := Record{Index: i, Due: due.Sub(r.started).Seconds(), Input: request.Input, Output: request.Output}

	ctx, cancel := context.WithDeadlineCause(ctx, due.Add(r.cfg.Timeout), errTimeout)
	defer cancel()
	// Of the last connection, if the transport tries another one.
	var waited time.Duration
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { waited = c.IdleTime }})
	body := r.body(i)
	record.Lag = since(time.Now())
	a, err := r.exchange(ctx, body, &record)
	record.E2E = since(time.Now())
	record.Tokens, record.Prompt, record.Cached = a.tokens(), a.prompt, a.cached
	if a.events > 0 {
		record.TTFT, record.Last = since(a.first), since(a.last)
	}
	if err == nil && a.events == 0 {
		err = &failure{Malformed, errors.New("the stream has no token")}
	}
	if err != nil {
		f := classify(ctx, err)
		record.Error, record.Message = f.kind, f.err.Error()
		record.Waited = waited.Seconds()
	}
	return record
}

// exchange sends the body and reads the answer. It fills in the fields from the response's headers.
func (r *Replay) exchange(ctx context.Context, body []byte, record *Record) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for key, values := range r.cfg.Header {
		request.Header[key] = values
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "text/event-stream")
	if r.cfg.Host != "" {
		request.Host = r.cfg.Host
	}
	response, err := r.client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	record.Status = response.StatusCode
	record.Stage = response.Header.Get(stageHeader)
	record.Epoch = response.Header.Get(epochHeader)
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBody))
		return answer{}, &failure{Kind(fmt.Sprintf("http %d", response.StatusCode)), errors.New(excerpt(string(text)))}
	}
	if kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); kind != "text/event-stream" {
		return answer{}, &failure{Malformed, fmt.Errorf("the content type is %q, not text/event-stream", response.Header.Get("Content-Type"))}
	}
	a, err := listen(response.Body, time.Now)
	if err == nil {
		// A connection is reused only when its response was read to the end.
		_, _ = io.CopyN(io.Discard, response.Body, maxErrorBody)
	}
	return a, err
}

// classify returns how a request failed. The end of its context explains any error that follows.
func classify(ctx context.Context, err error) *failure {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errTimeout):
		return &failure{Timeout, errTimeout}
	case cause != nil:
		return &failure{Cancelled, cause}
	}
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	return &failure{Connect, err}
}
