package control

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/cascadeinfer/cascade/xds/loadreport"
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

// Migration is one migration of a Migrations.
type Migration = loadreport.Migration

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
	return Migrations{Time: time.Now(), Migrations: c.fleet.Migrations(since, limit)}
}
