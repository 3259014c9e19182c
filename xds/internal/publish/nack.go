package publish

import (
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/xds/internal/planrollout"
)

// NACKs are recorded here, with what they may be blamed on; planrollout/nack.go decides
// what follows: suspects, quarantine, rollback.

// blamedNames returns the names that the error text mentions. Envoy lists the
// clusters that it refused and applies the others of the same response.
func blamedNames(text string, names []string) []string {
	var out []string
	for _, name := range names {
		if mentionsName(text, name) {
			out = append(out, name)
		}
	}
	return out
}

// mentionsName reports whether a text contains a name by itself, and not as
// part of a longer one.
func mentionsName(text, name string) bool {
	for at := 0; name != ""; {
		i := strings.Index(text[at:], name)
		if i < 0 {
			return false
		}
		from, to := at+i, at+i+len(name)
		if (from == 0 || !inName(text[from-1])) && (to == len(text) || !inName(text[to])) {
			return true
		}
		at = from + 1
	}
	return false
}

func inName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_/.%~", c) >= 0
}

// takeNACKs returns the NACKs since the last call, oldest first.
func (l *Ledger) takeNACKs() []planrollout.NACK {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.nacks
	l.nacks = nil
	return out
}

// recordNACKLocked records a NACK and logs the first one of a row. NACKs of
// observers, which route nothing, do not reach the rollout.
func (l *Ledger) recordNACKLocked(s *stream, typ string, sub *subscription, text string, r response) {
	s.node.nacks++
	s.node.lastError, s.node.errorAt = redact(text), time.Now()
	if rs := withoutSlots(r.versions()); len(rs) > 0 && !s.node.isObserver() {
		names := make([]string, len(rs))
		for i, v := range rs {
			names[i] = v.Name
		}
		l.nacks = append(l.nacks, planrollout.NACK{
			Node: s.node.id, Group: s.node.group, Type: typ, Resources: rs,
			Blamed: blamedNames(sanitize(text, maxRawText), names), Text: s.node.lastError,
		})
		l.nacks = l.nacks[max(0, len(l.nacks)-maxNACKs):]
	}
	if !sub.refused {
		l.log.Warn("node refused a response", "node", s.node.id, "type", shortType(typ), "error", s.node.lastError)
	}
	sub.refused = true
}
