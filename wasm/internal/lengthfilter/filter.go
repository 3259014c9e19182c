// Package lengthfilter is the length estimator that a proxy runs itself: which
// headers a request gets, told from its own headers, its body and what the
// proxy's route table says about the models of its host.
//
// It takes the same steps as the ext_proc service and reads bodies with the same
// scanner, so that a request gets the same headers from both. It is pure: it
// knows no proxy and makes no call; the module around it (package estimator)
// does. It keeps nothing of a body but the scanner's counts, and allocates
// nothing for a request once it has met the request's host.
//
// It fails open: a host of which nobody says which models it serves, or says it
// in a way that cannot be read, is left alone, and requests to it go where
// requests without an estimate go.
package lengthfilter

import (
	"bytes"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// maxHosts bounds the hosts that a Filter remembers. Route tables change, so
// that old ones have to go; a fleet has a host per model and one more.
const maxHosts = 64

// Filter estimates by one configuration. One goroutine at a time may use it.
type Filter struct {
	config   Config
	fallback *host            // what the configuration says, nil where it names no model
	hosts    map[string]*host // by encoded metadata
	last     []byte           // encoded metadata of the latest request
	lastHost *host
	idle     []*Body // scanners that wait for a body
}

// New returns a Filter for a configuration. The error names the field that is
// wrong.
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

// MaxBody is the largest body that is read, in bytes.
func (f *Filter) MaxBody() int64 { return f.config.MaxBody }

// What says what the proxy has to do with a request.
type What uint8

// What there is to do.
const (
	// Leave: let the request go on as it is.
	Leave What = iota
	// Tell: set the headers that the Answer has, remove the others, let the
	// request go on.
	Tell
	// Wait: hold the request and give its body to the Body, up to its end.
	Wait
	// Reject: answer with status 413 and length.TooLargeBody.
	Reject
)

// Answer is what a request gets.
type Answer struct {
	What   What
	Model  string          // "" where nobody knows
	Tokens policies.Tokens // -1 where nobody knows
}

// Headers answers a request from its headers and the encoded metadata of its
// virtual host, nil without any. Where the answer is Wait, the Body is there, and
// its next answer is the request's.
func (f *Filter) Headers(metadata []byte, h length.Headers) (Answer, *Body) {
	at := f.host(metadata)
	if at == nil {
		return Answer{}, nil
	}
	only := at.only()
	h.Model = only != nil
	step, size := h.Strategy(f.config.MaxBody)
	switch {
	case step == length.NoBody:
		return tell(only, -1), nil
	case step == length.BySize:
		return tell(only, only.estimator.FromContentLength(size)), nil
	case !f.config.ReadBody:
		return tell(only, -1), nil
	case step == length.RejectBody:
		return Answer{What: Reject}, nil
	}
	return Answer{What: Wait}, f.take(at)
}

// tell is the answer for a model, or for none. A route's open end excludes the
// largest number itself.
func tell(m *model, tokens policies.Tokens) Answer {
	a := Answer{What: Tell, Tokens: min(tokens, policies.Unbounded-1)}
	if m != nil {
		a.Model = m.name
	}
	return a
}

// Body reads the body of one request.
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

// Size is how much of the body was read, in bytes.
func (b *Body) Size() int64 { return b.size }

// Write reads the next chunk. It reports whether the body is still one that is
// read; if not, the answer is Reject.
func (b *Body) Write(chunk []byte) bool {
	b.size += int64(len(chunk))
	if b.size > b.filter.config.MaxBody {
		return false
	}
	b.scanner.Write(chunk)
	return true
}

// End answers at the end of the body.
func (b *Body) End() Answer {
	count := b.scanner.Count()
	m := b.host.only()
	if m == nil {
		m = b.host.byName(b.scanner.Model())
	}
	if m == nil {
		return tell(nil, length.Estimator{}.FromBody(count))
	}
	return tell(m, m.estimator.FromBody(count))
}

// Close gives the Body back. It must not be used afterwards.
func (b *Body) Close() {
	b.host = nil
	b.filter.idle = append(b.filter.idle, b)
}

// host returns what the metadata says, else what the configuration says, else
// nil.
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
