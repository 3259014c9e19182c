package nodeauth

import (
	"cmp"
	"log/slog"
	"net"
	"sync/atomic"
	"time"
)

// Refusals counts and logs refused clients. It is safe for concurrent use.
type Refusals struct {
	log   *slog.Logger
	count atomic.Uint64
	last  atomic.Pointer[Refusal]
	also  func(client, address string, why error)
}

// Refusal is the refusal of a client.
type Refusal struct {
	At     time.Time
	Client string // its identity or its node, or its host where that is not known
	Err    error
}

// NewRefusals returns a Refusals that has counted none. also, unless it is nil, is called for each refusal.
func NewRefusals(log *slog.Logger, also func(client, address string, why error)) *Refusals {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if also == nil {
		also = func(string, string, error) {}
	}
	return &Refusals{log: log, also: also}
}

// Record counts a refusal and logs it with a message. An empty client is replaced by the host of the address.
func (n *Refusals) Record(message, client, address, method string, why error) {
	if host, _, err := net.SplitHostPort(address); err == nil && client == "" {
		client = host
	}
	client = cmp.Or(client, address)
	n.count.Add(1)
	n.last.Store(&Refusal{time.Now(), client, why})
	args := []any{"client", client, "peer", address, "error", why}
	if method != "" {
		args = append(args, "method", method)
	}
	n.log.Warn(message, args...)
	n.also(client, address, why)
}

// Refused counts the refusals.
func (n *Refusals) Refused() uint64 { return n.count.Load() }

// LastRefusal returns the last one; nil if there was none.
func (n *Refusals) LastRefusal() *Refusal { return n.last.Load() }
