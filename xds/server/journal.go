package server

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/xds/ratelimitlog"
)

// journal logs refusals, one a minute for each peer.
type journal struct {
	log   *slog.Logger
	gate  ratelimitlog.Gate
	total atomic.Uint64
}

func newJournal(log *slog.Logger) *journal { return &journal{log: log} }

// note counts a refusal, and logs it if it is news.
func (j *journal) note(who, peer string, why error) {
	j.total.Add(1)
	if j.gate.Pass(who, time.Now()) {
		j.log.Warn("xds stream refused", "node", who, "peer", peer, "error", why)
	}
}

// Refused counts the streams that were refused or ended for what they did.
func (s *Server) Refused() uint64 { return s.refused.total.Load() }
