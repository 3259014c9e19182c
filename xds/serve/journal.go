package serve

import (
	"log/slog"
	"sync"
	"time"
)

const (
	// quiet is how long nothing more is logged about somebody who was refused.
	quiet = time.Minute
	// maxQuiet bounds those who are remembered for it. While there are as many,
	// nobody else is logged: whoever invents names must not fill the log.
	maxQuiet = 1024
)

// journal logs refusals, one a minute for each peer.
type journal struct {
	log *slog.Logger

	mu     sync.Mutex
	logged map[string]time.Time
	total  uint64
}

func newJournal(log *slog.Logger) *journal {
	return &journal{log: log, logged: make(map[string]time.Time)}
}

// note counts a refusal, and logs it if it is news.
func (j *journal) note(who, peer string, why error) {
	if j.news(who, time.Now()) {
		j.log.Warn("xds stream refused", "node", who, "peer", peer, "error", why)
	}
}

// news counts a refusal and reports whether it is to be logged.
func (j *journal) news(who string, now time.Time) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.total++
	if at, ok := j.logged[who]; ok && now.Sub(at) < quiet {
		return false
	}
	if len(j.logged) >= maxQuiet {
		for name, at := range j.logged {
			if now.Sub(at) >= quiet {
				delete(j.logged, name)
			}
		}
		if len(j.logged) >= maxQuiet {
			return false
		}
	}
	j.logged[who] = now
	return true
}

// Refused counts the streams that were refused or ended for what they did.
func (s *Server) Refused() uint64 {
	s.refused.mu.Lock()
	defer s.refused.mu.Unlock()
	return s.refused.total
}
