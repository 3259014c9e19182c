package nodeauth

import (
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/policies/identity"
	"github.com/cascadeinfer/cascade/xds/ratelimitlog"
)

// refusalLog counts refusals and logs those that the limiter passes.
type refusalLog struct {
	log     *slog.Logger
	limiter ratelimitlog.Limiter
	count   atomic.Uint64
}

func newRefusalLog(log *slog.Logger) *refusalLog {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &refusalLog{log: log}
}

func (n *refusalLog) total() uint64 { return n.count.Load() }

// record counts a refusal of an identity or, without one, of a host, and may
// log it.
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
	if n.countAndPass(client, time.Now()) {
		n.log.Warn("client refused: its certificate does not match", "client", client, "peer", address, "method", method, "error", why)
	}
}

// countAndPass counts a refusal and reports whether it is to be logged.
func (n *refusalLog) countAndPass(client string, now time.Time) bool {
	n.count.Add(1)
	return n.limiter.Allow(client, now)
}
