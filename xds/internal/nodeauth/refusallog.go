package nodeauth

import (
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/policies/identity"
	"github.com/cascadeinfer/cascade/xds/ratelimitlog"
)

// refusalLog counts refusals and logs those that are news.
type refusalLog struct {
	log     *slog.Logger
	limiter ratelimitlog.Gate
	count   atomic.Uint64
}

func newRefusalLog(log *slog.Logger) *refusalLog {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &refusalLog{log: log}
}

func (n *refusalLog) total() uint64 { return n.count.Load() }

// record notes a refusal of an identity or, without one, of a machine.
func (n *refusalLog) record(from net.Addr, id identity.ID, method string, why error) {
	address := ""
	if from != nil {
		address = from.String()
	}
	who := id.String()
	if id == (identity.ID{}) {
		who = address
		if host, _, err := net.SplitHostPort(address); err == nil {
			who = host
		}
	}
	if n.countAndPass(who, time.Now()) {
		n.log.Warn("a client is not who it must be and is refused", "client", who, "peer", address, "method", method, "error", why)
	}
}

// countAndPass counts a refusal and reports whether it is to be logged.
func (n *refusalLog) countAndPass(who string, now time.Time) bool {
	n.count.Add(1)
	return n.limiter.Pass(who, now)
}
