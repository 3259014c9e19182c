// Package lengthfilter is the length estimator that runs inside a proxy: it determines
// the headers that a request gets, from the request's own headers, its body, and the
// models that the proxy's route table lists for its host.
//
// It follows the same steps as the ext_proc service and scans bodies with the same
// scanner, so that both give a request the same headers. It is pure and makes no calls;
// the module around it (command estimator) talks to the proxy. It keeps only the
// scanner's counts of a body, and does not allocate for a request to a host that it has
// seen before.
//
// It fails open: requests to a host whose models are not listed, or whose list cannot be
// parsed, pass unchanged, and are routed like requests without an estimate.
package lengthfilter

import (
	"bytes"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// maxHosts bounds the hosts that a Filter caches. A fleet has one host per model and one
// more; changes of the route table add others.
const maxHosts = 64

// Filter estimates lengths with one configuration. It is not safe for concurrent use.
type Filter struct {
	config   Config
	fallback *host            // the configuration's models, nil if it lists none
	hosts    map[string]*host // by encoded metadata
	last     []byte           // encoded metadata of the latest request
	lastHost *host
	idle     []*Body // scanners that are free
}

// New returns a Filter for a configuration. The error names the invalid field.
func New(c Config) (*Filter, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	f := &Filter{config: c, hosts: make(map[string]*host)}
	if len(c.Models) > 0 {
		f.fallback = newHost(c.Models)
	}
	return f, nil
}

// MaxBody returns the size of the largest body that the filter reads, in bytes.
func (f *Filter) MaxBody() int64 { return f.config.MaxBody }

// Action is what the proxy must do with a request.
type Action uint8

// The actions.
const (
	// Leave lets the request continue unchanged.
	Leave Action = iota
	// SetHeaders sets the headers that the Answer has, removes the others, and lets
	// the request continue.
	SetHeaders
	// Wait holds the request until its whole body was written to the Body.
	Wait
	// Reject answers with status 413 and length.TooLargeBody.
	Reject
)

// Answer is the filter's decision about a request.
type Answer struct {
	Action Action
	Model  string          // "" if unknown
	Tokens policies.Tokens // -1 if unknown
}

// Headers decides about a request by its headers and the encoded metadata of its virtual
// host, which is nil if it has none. If the action is Wait, Headers also returns the
// Body that decides at the end of the request's body.
func (f *Filter) Headers(metadata []byte, h length.Headers) (Answer, *Body) {
	at := f.host(metadata)
	if at == nil {
		return Answer{}, nil
	}
	only := at.only()
	h.Model = only != nil
	step, size := h.Strategy(f.config.MaxBody)
	switch {
	case step == length.ModelOnly:
		return newAnswer(only, -1), nil
	case step == length.BySize:
		return newAnswer(only, only.estimator.FromContentLength(size)), nil
	case !f.config.ReadBody:
		return newAnswer(only, -1), nil
	case step == length.RejectBody:
		return Answer{Action: Reject}, nil
	}
	return Answer{Action: Wait}, f.take(at)
}

// newAnswer returns the answer for a model, nil if it is unknown. The open end of a route's
// range excludes the largest number itself.
func newAnswer(m *model, tokens policies.Tokens) Answer {
	a := Answer{Action: SetHeaders, Tokens: min(tokens, policies.Unbounded-1)}
	if m != nil {
		a.Model = m.name
	}
	return a
}

// Body scans the body of one request.
type Body struct {
	filter  *Filter
	host    *host
	scanner length.Scanner
	size    int64
}

func (f *Filter) take(at *host) *Body {
	var b *Body
	if n := len(f.idle); n > 0 {
		b, f.idle = f.idle[n-1], f.idle[:n-1]
		b.scanner.Reset()
		b.size = 0
	} else {
		b = &Body{filter: f}
	}
	b.host = at
	return b
}

// Size returns how much of the body was written, in bytes.
func (b *Body) Size() int64 { return b.size }

// Write scans the next chunk. It returns false if the body exceeds MaxBody; then the
// action is Reject.
func (b *Body) Write(chunk []byte) bool {
	b.size += int64(len(chunk))
	if b.size > b.filter.config.MaxBody {
		return false
	}
	b.scanner.Write(chunk)
	return true
}

// End decides about the request at the end of its body.
func (b *Body) End() Answer {
	count := b.scanner.Count()
	m := b.host.only()
	if m == nil {
		m = b.host.byName(b.scanner.Model())
	}
	if m == nil {
		return newAnswer(nil, length.Estimator{}.FromBody(count))
	}
	return newAnswer(m, m.estimator.FromBody(count))
}

// Close frees the Body for another request. It must not be used afterwards.
func (b *Body) Close() {
	b.host = nil
	b.filter.idle = append(b.filter.idle, b)
}

// host returns the models in the metadata, else those in the configuration, else nil.
func (f *Filter) host(metadata []byte) *host {
	if len(metadata) == 0 {
		return f.fallback
	}
	if f.lastHost != nil && bytes.Equal(metadata, f.last) {
		return f.lastHost
	}
	at, ok := f.hosts[string(metadata)]
	if !ok {
		models, err := decodeMetadata(metadata)
		if at = f.fallback; err == nil && len(models) > 0 {
			at = newHost(models)
		}
		if len(f.hosts) >= maxHosts {
			clear(f.hosts)
		}
		f.hosts[string(metadata)] = at
	}
	if at != nil {
		f.last, f.lastHost = append(f.last[:0], metadata...), at
	}
	return at
}
