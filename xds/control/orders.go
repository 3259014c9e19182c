package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/fleet"
)

// AdminHeader must be on every request that changes something, with any value:
// no page of another site can make a browser send it without asking first.
const AdminHeader = "X-Cascade-Admin"

// Bounds of what an operator may ask.
const (
	// maxOrder bounds a body, which nobody reads: an order is in its query.
	maxOrder     = 4 << 10
	orderTimeout = 10 * time.Second
	// defaultMoves and maxMoves bound an answer of /migrations.
	defaultMoves = 100
	maxMoves     = 512
)

// problem is the JSON answer to what cannot be done.
type problem struct {
	Error string `json:"error"`
}

// answer writes a JSON answer.
func answer(w http.ResponseWriter, code int, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("content-type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n'))
}

// ordered guards a handler that changes something against requests that a
// browser makes for somebody else: the header, or a content type that forms
// cannot have, needs a preflight, which nobody answers; and a name that was
// made to point here is not one of loopback's.
func ordered(order func(context.Context, policies.ReplicaID) error, then func(policies.ReplicaID) Order) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxOrder)
		kind, _, _ := strings.Cut(r.Header.Get("content-type"), ";")
		id := policies.ReplicaID(r.URL.Query().Get("replica"))
		switch {
		case !ownHost(r.Host):
			answer(w, http.StatusForbidden, problem{fmt.Sprintf("host %q: ask for localhost or an address of loopback", r.Host)})
			return
		case len(r.Header.Values(AdminHeader)) == 0 && strings.TrimSpace(kind) != "application/json":
			answer(w, http.StatusForbidden, problem{"send the header " + AdminHeader + ": 1"})
			return
		case id == "":
			answer(w, http.StatusBadRequest, problem{"name the replica: ?replica=ID"})
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), orderTimeout)
		defer cancel()
		if err := order(ctx, id); err != nil {
			answer(w, codeOf(err), problem{err.Error()})
			return
		}
		answer(w, http.StatusOK, then(id))
	})
}

// codeOf is the status that stands for a refused order.
func codeOf(err error) int {
	switch {
	case errors.Is(err, fleet.ErrUnknown):
		return http.StatusNotFound
	case errors.Is(err, fleet.ErrLast), errors.Is(err, fleet.ErrFile):
		return http.StatusConflict
	}
	return http.StatusServiceUnavailable
}

// ownHost says that a Host header names this machine by loopback.
func ownHost(host string) bool {
	if _, _, err := net.SplitHostPort(host); err != nil {
		host = net.JoinHostPort(strings.Trim(host, "[]"), "80")
	}
	return loopback(host) == nil
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
