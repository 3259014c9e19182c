package nodeauth

import (
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/internal/identity"
)

// refusalLog counts and logs refusals.
type refusalLog struct {
	log   *slog.Logger
	count atomic.Uint64
	last  atomic.Pointer[Refusal]
	also  func(client, address string, why error) // may be nil
}

// Refusal is the refusal of a client.
type Refusal struct {
	At     time.Time
	Client string // its identity, or its host if it has none
	Err    error
}

func newRefusalLog(log *slog.Logger, also func(client, address string, why error)) *refusalLog {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &refusalLog{log: log, also: also}
}

func (n *refusalLog) total() uint64 { return n.count.Load() }

// record counts and logs a refusal of an identity or, without one, of a host.
func (n *refusalLog) record(from net.Addr, id identity.ID, method string, why error) {
	address := ""
	if from != nil {
		address = from.String()
	}
	client := id.String()
	if id == (identity.ID{}) {
		client = address
		if host, _, err := net.SplitHostPort(address); err == nil {
			client = host
		}
	}
	n.count.Add(1)
	n.last.Store(&Refusal{time.Now(), client, why})
	message := "client refused: its certificate does not match"
	if errors.Is(why, ErrPlainText) {
		message = "client refused: it does not speak TLS"
	}
	n.log.Warn(message, "client", client, "peer", address, "method", method, "error", why)
	if n.also != nil {
		n.also(client, address, why)
	}
}
