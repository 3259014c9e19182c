package fleet

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
)

// Move is one migration as its teller last told it.
type Move struct {
	ID      string // teller/number; the same in every report of the move
	Request string // the stream that moves
	Cause   string // growth, outlier, drain, spill, engine lost
	Front   policies.ReplicaID
	From    policies.ReplicaID
	To      policies.ReplicaID
	Way     string // live, reprompt
	// Transport is what carried the blocks; empty where none had to be.
	Transport string
	State     string // MoveDone and MoveAborted are final
	Why       string // of an abort
	Rounds    int
	Tokens    policies.Tokens // length of the request when the move began
	Bytes     int64           // copied
	Stall     float64         // seconds without a token for the client
	Seconds   float64         // from the grant to the end, or until it was told
	Started   time.Time       // by the teller's clock
	Told      time.Time       // when the control plane heard of it last, by its own
}

// The final states of a move.
const (
	MoveDone    = "done"
	MoveAborted = "aborted"
)

// Ended says that the move's state is final.
func (m Move) Ended() bool { return m.State == MoveDone || m.State == MoveAborted }

// Bounds of what a report may say of moves.
const (
	maxMoves    = 64      // in one report
	maxWord     = 64      // bytes of a cause, way, transport or state
	maxWhy      = 512     // bytes of a reason; longer ones are cut
	maxMoveName = 1024    // bytes of a move's or a stream's name, which hold a replica's
	maxBytes    = 1 << 60 // copied by one move
	maxRounds   = 1 << 20
)

// decodeMoves returns the moves that are valid and the reporter's own, and how
// many were not: a report that lies about a move still tells of load.
func decodeMoves(teller policies.ReplicaID, list []*api.Migration) (moves []Move, dropped int) {
	if len(list) > maxMoves {
		list, dropped = list[:maxMoves], len(list)-maxMoves
	}
	for _, m := range list {
		move, ok := decodeMove(teller, m)
		if !ok {
			dropped++
			continue
		}
		moves = append(moves, move)
	}
	return moves, dropped
}

// decodeMove checks one move. A replica tells of the moves that it began, which
// carry its name: those that leave it, and those by which it as a front rescues
// a stream from elsewhere.
func decodeMove(teller policies.ReplicaID, m *api.Migration) (Move, bool) {
	for _, name := range [...]string{m.GetId(), m.GetRequest()} {
		if name == "" || len(name) > maxMoveName {
			return Move{}, false
		}
	}
	for _, name := range [...]string{m.GetFrontEnd(), m.GetFrom(), m.GetTo()} {
		if len(name) > maxName {
			return Move{}, false
		}
	}
	for _, word := range [...]string{m.GetCause(), m.GetMethod(), m.GetTransport(), m.GetState()} {
		if len(word) > maxWord {
			return Move{}, false
		}
	}
	own := strings.HasPrefix(m.GetId(), string(teller)+"/") && (m.GetFrom() == string(teller) || m.GetFrontEnd() == string(teller))
	sane := m.GetTokens() >= 0 && m.GetTokens() <= maxTokens && m.GetBytes() >= 0 && m.GetBytes() <= maxBytes &&
		m.GetRounds() <= maxRounds && within(m.GetStallSeconds(), maxStream) && within(m.GetSeconds(), maxStream)
	if !own || !sane || m.GetState() == "" {
		return Move{}, false
	}
	return Move{
		ID: m.GetId(), Request: m.GetRequest(), Cause: m.GetCause(),
		Front: policies.ReplicaID(m.GetFrontEnd()), From: policies.ReplicaID(m.GetFrom()), To: policies.ReplicaID(m.GetTo()),
		Way: m.GetMethod(), Transport: m.GetTransport(), State: m.GetState(), Why: cut(m.GetReason(), maxWhy),
		Rounds: int(m.GetRounds()), Tokens: policies.Tokens(m.GetTokens()), Bytes: m.GetBytes(),
		Stall: m.GetStallSeconds(), Seconds: m.GetSeconds(), Started: started(m.GetStartedUnixMicros()),
	}, true
}

// started is the time of a move's begin; zero for one that no clock shows.
func started(micros int64) time.Time {
	if micros <= 0 || micros > maxMicros {
		return time.Time{}
	}
	return time.UnixMicro(micros).UTC()
}

// maxMicros is the end of the year 9999, the last that JSON can write.
const maxMicros = 253402300799 * 1e6

// cut shortens a text to at most n bytes, between two characters.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
