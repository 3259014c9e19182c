package control

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// Bounds of an answer of /migrations.
const (
	defaultMoves = 100
	maxMoves     = 512
)

// drainOrder makes an order about the replica of ?replica=.
func drainOrder(give func(context.Context, policies.ReplicaID) error, then func(policies.ReplicaID) Order) order {
	return func(ctx context.Context, q url.Values) (any, error) {
		id := policies.ReplicaID(q.Get("replica"))
		if id == "" {
			return nil, malformed("name the replica: ?replica=ID")
		}
		if err := give(ctx, id); err != nil {
			return nil, err
		}
		return then(id), nil
	}
}

// replicaStatus is a replica as /status shows it, with its stage; nothing but
// the id for one that is gone.
func (c *Control) replicaStatus(id policies.ReplicaID) Order {
	out := Order{Replica: Replica{ID: id}}
	for _, m := range c.Status().Models {
		for _, r := range m.Unassigned {
			if r.ID == id {
				out = Order{Model: m.Name, Replica: r}
			}
		}
		for _, st := range m.Stages {
			for _, r := range st.Replicas {
				if r.ID == id {
					out = Order{Model: m.Name, Stage: st.Name, Replica: r}
				}
			}
		}
	}
	return out
}

// Order is what POST /drain and POST /undrain answer, as JSON: the replica as it
// is now. It is empty, and may be stopped, when its Residents are 0 and a report
// has come since.
type Order struct {
	Model string `json:"model"`
	Stage string `json:"stage,omitempty"` // absent: in none
	Replica
}

// Migrations is what GET /migrations answers, as JSON.
type Migrations struct {
	// Time is when this was true: as the next request's since it brings what was
	// told later.
	Time time.Time `json:"time"`
	// Moves are the newest first, each as it was told last.
	Moves []Migration `json:"moves"`
}

// Migration is one move of a request between replicas. Fields are only ever
// added.
type Migration struct {
	ID        string             `json:"id"`
	Request   string             `json:"request"`
	Cause     string             `json:"cause"` // growth, outlier, drain, spill, engine lost
	Front     policies.ReplicaID `json:"front"`
	From      policies.ReplicaID `json:"from"`
	To        policies.ReplicaID `json:"to"`
	Way       string             `json:"way"`                 // live, reprompt
	Transport string             `json:"transport,omitempty"` // of the blocks
	State     string             `json:"state"`               // done and aborted are final
	Why       string             `json:"why,omitempty"`       // of an abort
	Rounds    int                `json:"rounds"`
	Tokens    policies.Tokens    `json:"tokens"` // length of the request when the move began
	Bytes     int64              `json:"bytes"`
	Stall     float64            `json:"stall_seconds"`
	Seconds   float64            `json:"seconds"`           // it took, or has taken so far
	Started   *time.Time         `json:"started,omitempty"` // by the teller's clock
	Told      time.Time          `json:"told"`              // when it was told last
}

// migrations answers GET /migrations?since=TIME&limit=N.
func (c *Control) migrations(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	var since time.Time
	limit := defaultMoves
	var err error
	if s := q.Get("since"); s != "" {
		if since, err = time.Parse(time.RFC3339Nano, s); err != nil {
			answer(w, http.StatusBadRequest, problem{"since: give a time such as 2026-01-02T15:04:05Z"})
			return
		}
	}
	if s := q.Get("limit"); s != "" {
		if limit, err = strconv.Atoi(s); err != nil || limit < 1 || limit > maxMoves {
			answer(w, http.StatusBadRequest, problem{fmt.Sprintf("limit: give a number from 1 to %d", maxMoves)})
			return
		}
	}
	answer(w, http.StatusOK, c.Migrations(since, limit))
}

// Migrations returns what /migrations answers: up to limit moves that were told
// after since.
func (c *Control) Migrations(since time.Time, limit int) Migrations {
	out := Migrations{Time: time.Now(), Moves: []Migration{}}
	for _, m := range c.fleet.Moves(since, limit) {
		move := Migration{
			ID: m.ID, Request: m.Request, Cause: m.Cause, Front: m.Front, From: m.From, To: m.To, Way: m.Way,
			Transport: m.Transport, State: m.State, Why: m.Why, Rounds: m.Rounds, Tokens: m.Tokens, Bytes: m.Bytes,
			Stall: m.Stall, Seconds: m.Seconds, Told: m.Told,
		}
		if !m.Started.IsZero() {
			move.Started = &m.Started
		}
		out.Moves = append(out.Moves, move)
	}
	return out
}
