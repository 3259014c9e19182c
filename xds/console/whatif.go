package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of a what-if.
const (
	maxQuery      = 2 << 10 // bytes
	whatIfTimeout = 5 * time.Second
	maxReplicas   = 10_000
	maxRate       = 1e6 // requests/s
	maxIteration  = 60  // seconds
)

// Question is a hypothetical situation of one model.
type Question struct {
	Model    string
	Replicas int // 0: as many as now
	// Mix is the name of a request mix; "" is the traffic of the last planning period.
	Mix string
	// Rate of the requests, per second; 0 is the present one.
	Rate float64
	// Iteration bounds the predicted iteration of every stage, in seconds; 0 leaves the fleet file's
	// bound.
	Iteration float64
}

// FieldError is why a question has no answer.
type FieldError struct {
	Field string // of the question, as in the query; "" for none
	Text  string
}

// Error implements error.
func (e *FieldError) Error() string {
	if e.Field == "" {
		return e.Text
	}
	return e.Field + ": " + e.Text
}

// Answer is the plan for a Question. A cost is the predicted number of requests in the system.
type Answer struct {
	Model    string  `json:"model"`
	Replicas int     `json:"replicas"`
	Traffic  string  `json:"traffic"` // in words
	Rate     float64 `json:"rate"`    // requests/s
	// Iteration is the bound that held, in seconds, besides that on the ratio; 0: none.
	Iteration float64 `json:"iteration_bound_seconds,omitempty"`
	Policy    string  `json:"policy"`
	Stages    []Stage `json:"stages"`
	Cost      float64 `json:"cost"`
	// OneStage is the cost with all replicas in one stage; absent: one stage cannot carry the traffic.
	OneStage *float64 `json:"one_stage_cost,omitempty"`
	// Present is the cost of the plan in force under the present traffic; absent: unknown.
	Present *float64 `json:"present_cost,omitempty"`
	Exact   bool     `json:"exact"` // proved: no plan is better by the policy's model
	// Slack is the share of the cost that the policy gives up for fewer stages, at most.
	Slack   float64 `json:"slack,omitempty"`
	Elapsed float64 `json:"elapsed_seconds"`
}

// serveWhatIf answers GET /console/whatif?model=NAME&replicas=N&mix=NAME&rate=R&iteration_ms=T.
func (c *Console) serveWhatIf(w http.ResponseWriter, r *http.Request) {
	if len(r.URL.RawQuery) > maxQuery {
		writeError(w, http.StatusRequestURITooLong, &FieldError{Text: fmt.Sprintf("the query has %d bytes, and may have %d", len(r.URL.RawQuery), maxQuery)})
		return
	}
	q, bad := parseQuestion(r.URL.RawQuery)
	if bad != nil {
		writeError(w, http.StatusBadRequest, bad)
		return
	}
	select {
	case c.asking <- struct{}{}:
	default:
		w.Header().Set("Retry-After", "1")
		writeError(w, http.StatusTooManyRequests, &FieldError{Text: "another what-if is being computed; try again in a second"})
		return
	}
	defer func() { <-c.asking }()
	ctx, cancel := context.WithTimeout(r.Context(), whatIfTimeout)
	defer cancel()
	answer, err := c.cfg.Source.WhatIf(ctx, q)
	var field *FieldError
	switch {
	case err == nil:
		writeJSON(w, http.StatusOK, answer)
	case errors.As(err, &field):
		writeError(w, http.StatusUnprocessableEntity, field)
	case errors.Is(err, context.DeadlineExceeded):
		writeError(w, http.StatusServiceUnavailable, &FieldError{Text: fmt.Sprintf("no plan within %v; ask for fewer replicas, or when the host is less busy", whatIfTimeout)})
	case errors.Is(err, context.Canceled): // the client has left
	default:
		c.cfg.Logger.Warn("what-if failed", "error", err)
		writeError(w, http.StatusInternalServerError, &FieldError{Text: err.Error()})
	}
}

// parseQuestion decodes a query. Empty fields count as absent.
func parseQuestion(query string) (Question, *FieldError) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return Question{}, &FieldError{Text: "the query is malformed: " + err.Error()}
	}
	var q Question
	known := []string{"model", "replicas", "mix", "rate", "iteration_ms"}
	for name, all := range values {
		if !slices.Contains(known, name) {
			return q, &FieldError{fmt.Sprintf("%.40q", name), "unknown; must be one of " + strings.Join(known, ", ")}
		}
		if len(all) > 1 {
			return q, &FieldError{name, "given more than once"}
		}
	}
	q.Model, q.Mix = values.Get("model"), values.Get("mix")
	if text := values.Get("replicas"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxReplicas {
			return q, &FieldError{"replicas", fmt.Sprintf("%.20q: must be a whole number from 1 to %d", text, maxReplicas)}
		}
		q.Replicas = n
	}
	number := func(field string, most float64, unit string) (float64, *FieldError) {
		text := values.Get(field)
		if text == "" {
			return 0, nil
		}
		x, err := strconv.ParseFloat(text, 64)
		if err != nil || !(x > 0 && x <= most) {
			return 0, &FieldError{field, fmt.Sprintf("%.20q: must be a number above 0 and at most %v %s", text, most, unit)}
		}
		return x, nil
	}
	var bad *FieldError
	if q.Rate, bad = number("rate", maxRate, "requests/s"); bad != nil {
		return q, bad
	}
	ms, bad := number("iteration_ms", maxIteration*1e3, "ms")
	q.Iteration = ms / 1e3
	return q, bad
}
