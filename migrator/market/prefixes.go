package market

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// prefixRepeat is after how many summaries a peer is sent again what this replica holds although
// it has not changed: the message may have been lost.
const prefixRepeat = 16

// maxSent bounds the peers of which it is remembered what they were sent.
const maxSent = 1 << 14

// sentPrefixes says which version of what this replica holds a peer was sent, and with which
// summary.
type sentPrefixes struct{ version, sequence uint64 }

// updatePrefixes asks what this replica holds.
func (m *Market) updatePrefixes() {
	if m.cfg.Prefixes == nil {
		return
	}
	if encoded, version := m.cfg.Prefixes(m.prefixVersion); version != m.prefixVersion {
		m.prefixes, m.prefixVersion = encoded, version
	}
}

// lacksPrefixes reports whether the present summary to a peer says what this replica holds, and
// records that it does.
func (m *Market) lacksPrefixes(peer policies.ReplicaID) bool {
	if m.prefixes == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	last, ok := m.sent[peer]
	if ok && last.version == m.prefixVersion && m.summarySequence-last.sequence < prefixRepeat {
		return false
	}
	if len(m.sent) == maxSent {
		clear(m.sent) // peers that have left; the others are sent it again
	}
	m.sent[peer] = sentPrefixes{m.prefixVersion, m.summarySequence}
	m.status.PrefixBytesSent += uint64(len(m.prefixes))
	return true
}

// forgetSentPrefixes makes the next summary to a peer say what this replica holds: the peer may
// be another process.
func (m *Market) forgetSentPrefixes(peer policies.ReplicaID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sent, peer)
}

// receivePrefixesLocked records what a peer holds, with m.mu held. Bytes that are no summary
// change nothing.
func (m *Market) receivePrefixesLocked(from policies.ReplicaID, encoded []byte) {
	if len(encoded) == 0 {
		return
	}
	m.status.PrefixBytesReceived += uint64(len(encoded))
	s := new(prefix.Summary)
	if err := s.UnmarshalBinary(encoded); err != nil {
		m.status.PrefixesRefused++
		return
	}
	var held place.Prefixes
	if s.Tokens() > 0 {
		held = s
	}
	m.peers.do(func(v *place.Peers) { v.SetPeerPrefixes(from, held) })
}
