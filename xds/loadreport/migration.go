package loadreport

import (
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/internal/cleantext"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
)

// Migration is one migration as the replica that began it last reported it. Its tags are the names in GET /migrations,
// where fields are only ever added.
type Migration struct {
	ID       string             `json:"id"`      // reporter/number; the same in every report of the migration
	Request  string             `json:"request"` // the stream that it moves
	Cause    string             `json:"cause"`   // growth, cheaper, outlier, drain, spill, prefill, engine lost; CausePrefix for a prefix pull
	FrontEnd policies.ReplicaID `json:"frontend"`
	From     policies.ReplicaID `json:"from"`
	To       policies.ReplicaID `json:"to"`
	Method   string             `json:"method"` // live, reprompt, handoff
	// Transport is what carried the blocks; empty where none had to be.
	Transport string          `json:"transport,omitempty"`
	State     string          `json:"state"`            // MigrationDone and MigrationAborted are final
	Reason    string          `json:"reason,omitempty"` // of an abort
	Rounds    int             `json:"rounds"`
	Tokens    policies.Tokens `json:"tokens"`           // length of the request when the migration began
	Bytes     int64           `json:"bytes"`            // copied
	Stall     float64         `json:"stall_seconds"`    // without a token for the client
	Seconds   float64         `json:"seconds"`          // from the grant to the end, or until the report
	Started   time.Time       `json:"started,omitzero"` // by the reporter's clock
	Reported  time.Time       `json:"reported"`         // when the control plane received the last report of it, by its own clock
}

// CausePrefix is the cause of a prefix pull: not the request moves, but the KV of its prompt's beginning,
// before its first token. The replica that gets it reports it.
const CausePrefix = "prefix"

// The final states of a migration.
const (
	MigrationDone    = "done"
	MigrationAborted = "aborted"
)

// Ended reports whether the migration's state is final.
func (m Migration) Ended() bool { return m.State == MigrationDone || m.State == MigrationAborted }

// Bounds of the migrations and routes of a report.
const (
	MaxMigrations  = 64      // in one report
	maxKeyword     = 64      // bytes of a cause, method, transport or state
	maxReason      = 512     // bytes of a reason; longer ones are truncated
	maxMigrationID = 1024    // bytes of a migration's or a stream's id, which contain a replica's
	maxBytes       = 1 << 60 // copied by one migration
	maxRounds      = 1 << 20
	maxUnixMicros  = 253402300799 * 1e6 // the end of the year 9999, the last that JSON can write
)

// DecodeMigrations returns the valid migrations that the reporter began, and how many
// were dropped: a report with a bad migration still has a load.
func DecodeMigrations(reporter policies.ReplicaID, list []*api.Migration) (migrations []Migration, dropped int) {
	if len(list) > MaxMigrations {
		list, dropped = list[:MaxMigrations], len(list)-MaxMigrations
	}
	for _, m := range list {
		migration, ok := decodeMigration(reporter, m)
		if !ok {
			dropped++
			continue
		}
		migrations = append(migrations, migration)
	}
	return migrations, dropped
}

// decodeMigration checks one migration. A replica reports the migrations that it
// began, whose ids begin with its own: those away from it, those by which its front end
// rescues a stream from another replica, and its prefix pulls.
func decodeMigration(reporter policies.ReplicaID, m *api.Migration) (Migration, bool) {
	for _, id := range [...]string{m.GetId(), m.GetRequest()} {
		if id == "" || len(id) > maxMigrationID {
			return Migration{}, false
		}
	}
	for _, name := range [...]string{m.GetFrontEnd(), m.GetFrom(), m.GetTo()} {
		if len(name) > MaxName {
			return Migration{}, false
		}
	}
	for _, keyword := range [...]string{m.GetCause(), m.GetMethod(), m.GetTransport(), m.GetState()} {
		if len(keyword) > maxKeyword {
			return Migration{}, false
		}
	}
	begun := m.GetFrom() == string(reporter) || m.GetFrontEnd() == string(reporter)
	if m.GetCause() == CausePrefix {
		begun = m.GetTo() == string(reporter)
	}
	own := begun && strings.HasPrefix(m.GetId(), string(reporter)+"/")
	bounded := m.GetTokens() >= 0 && m.GetTokens() <= MaxTokens && m.GetBytes() >= 0 && m.GetBytes() <= maxBytes &&
		m.GetRounds() <= maxRounds && Within(m.GetStallSeconds(), maxDuration) && Within(m.GetSeconds(), maxDuration)
	if !own || !bounded || m.GetState() == "" {
		return Migration{}, false
	}
	text := func(s string) string { return cleantext.Printable(s, maxMigrationID) } // they are all shorter
	return Migration{
		ID: text(m.GetId()), Request: text(m.GetRequest()), Cause: text(m.GetCause()),
		FrontEnd: policies.ReplicaID(text(m.GetFrontEnd())), From: policies.ReplicaID(text(m.GetFrom())), To: policies.ReplicaID(text(m.GetTo())),
		Method: text(m.GetMethod()), Transport: text(m.GetTransport()), State: text(m.GetState()), Reason: cleantext.Printable(m.GetReason(), maxReason),
		Rounds: int(m.GetRounds()), Tokens: policies.Tokens(m.GetTokens()), Bytes: m.GetBytes(),
		Stall: m.GetStallSeconds(), Seconds: m.GetSeconds(), Started: decodeTime(m.GetStartedUnixMicros()),
	}, true
}

// decodeTime returns the time, or the zero time for one that JSON cannot write.
func decodeTime(micros int64) time.Time {
	if micros <= 0 || micros > maxUnixMicros {
		return time.Time{}
	}
	return time.UnixMicro(micros).UTC()
}
