package control

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// Bounds of a response of /migrations.
const (
	defaultMigrations = 100
	maxMigrations     = 512
)

// Migrations is what GET /migrations answers, as JSON.
type Migrations struct {
	// Time is when the response was made: as since of the next request it
	// selects what was reported later.
	Time time.Time `json:"time"`
	// Migrations are listed newest first, each as it was reported last.
	Migrations []Migration `json:"migrations"`
}

// Migration is one migration of a request between replicas. Fields are only
// ever added.
type Migration struct {
	ID        string             `json:"id"`
	Request   string             `json:"request"`
	Cause     string             `json:"cause"` // growth, cheaper, outlier, drain, spill, prefill, engine lost, prefix
	Frontend  policies.ReplicaID `json:"frontend"`
	From      policies.ReplicaID `json:"from"`
	To        policies.ReplicaID `json:"to"`
	Method    string             `json:"method"`              // live, reprompt
	Transport string             `json:"transport,omitempty"` // of the blocks
	State     string             `json:"state"`               // done and aborted are final
	Reason    string             `json:"reason,omitempty"`    // reason of an abort
	Rounds    int                `json:"rounds"`
	Tokens    policies.Tokens    `json:"tokens"` // length of the request at the start
	Bytes     int64              `json:"bytes"`
	Stall     float64            `json:"stall_seconds"`
	Seconds   float64            `json:"seconds"`           // duration so far
	Started   *time.Time         `json:"started,omitempty"` // by the reporter's clock
	Reported  time.Time          `json:"reported"`          // time of the last report
}

// migrations answers GET /migrations?since=TIME&limit=N.
func (c *Control) migrations(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	var since time.Time
	limit := defaultMigrations
	var err error
	if s := q.Get("since"); s != "" {
		if since, err = time.Parse(time.RFC3339Nano, s); err != nil {
			writeJSON(w, http.StatusBadRequest, errorBody{"since: must be a time such as 2026-01-02T15:04:05Z"})
			return
		}
	}
	if s := q.Get("limit"); s != "" {
		if limit, err = strconv.Atoi(s); err != nil || limit < 1 || limit > maxMigrations {
			writeJSON(w, http.StatusBadRequest, errorBody{fmt.Sprintf("limit: must be a number from 1 to %d", maxMigrations)})
			return
		}
	}
	writeJSON(w, http.StatusOK, c.Migrations(since, limit))
}

// Migrations returns what GET /migrations answers: up to limit migrations that
// were reported after since.
func (c *Control) Migrations(since time.Time, limit int) Migrations {
	out := Migrations{Time: time.Now(), Migrations: []Migration{}}
	for _, m := range c.fleet.Migrations(since, limit) {
		migration := Migration{
			ID: m.ID, Request: m.Request, Cause: m.Cause, Frontend: m.FrontEnd, From: m.From, To: m.To, Method: m.Method,
			Transport: m.Transport, State: m.State, Reason: m.Reason, Rounds: m.Rounds, Tokens: m.Tokens, Bytes: m.Bytes,
			Stall: m.Stall, Seconds: m.Seconds, Reported: m.Reported,
		}
		if !m.Started.IsZero() {
			migration.Started = &m.Started
		}
		out.Migrations = append(out.Migrations, migration)
	}
	return out
}
