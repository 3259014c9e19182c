package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/store"
)

// AdminHeader must be on every request that changes something, with any value:
// no page of another site can make a browser send it without asking first.
const AdminHeader = "X-Cascade-Admin"

// Bounds of what an operator may ask.
const (
	// maxOrder bounds a body, which nobody reads: an order is in its query.
	maxOrder     = 4 << 10
	orderTimeout = 10 * time.Second
)

// problem is the JSON answer to what cannot be done.
type problem struct {
	Error string `json:"error"`
}

// malformed is the error of a request that asks for nothing that there is.
type malformed string

func (m malformed) Error() string { return string(m) }

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

// OwnHosts lets requests through whose Host names loopback, or is one of the
// names. A browser on this machine would give a page of another site what it
// asks for, where that site's name was made to point here.
func OwnHosts(names []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !ownHost(r.Host) && !slices.Contains(names, bareHost(r.Host)) {
			answer(w, http.StatusForbidden, problem{fmt.Sprintf("host %q: ask for localhost or an address of loopback, or add the name to the admin hosts", r.Host)})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ownHost says that a Host header names this machine by loopback.
func ownHost(host string) bool {
	if _, _, err := net.SplitHostPort(host); err != nil {
		host = net.JoinHostPort(strings.Trim(host, "[]"), "80")
	}
	return loopback(host) == nil
}

// bareHost is a Host header without its port, in lower case.
func bareHost(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

// order changes something and returns what to answer.
type order func(context.Context, url.Values) (any, error)

// ordered serves an order, guarded against requests that a browser makes for
// somebody else: the header, or a content type that forms cannot have, needs a
// preflight, which nobody answers.
func ordered(give order) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxOrder)
		if !asked(w, r) {
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), orderTimeout)
		defer cancel()
		out, err := give(ctx, r.URL.Query())
		if err != nil {
			answer(w, codeOf(err), problem{err.Error()})
			return
		}
		answer(w, http.StatusOK, out)
	})
}

// asked says that no page of another site made a browser send the request, and
// answers it otherwise.
func asked(w http.ResponseWriter, r *http.Request) bool {
	kind, _, _ := strings.Cut(r.Header.Get("content-type"), ";")
	if len(r.Header.Values(AdminHeader)) == 0 && strings.TrimSpace(kind) != "application/json" {
		answer(w, http.StatusForbidden, problem{"send the header " + AdminHeader + ": 1"})
		return false
	}
	return true
}

// codeOf is the status that stands for a refused order.
func codeOf(err error) int {
	var bad malformed
	var denied inadmissible
	var large *http.MaxBytesError
	is := func(target error) bool { return errors.Is(err, target) }
	switch {
	case errors.As(err, &large), is(errTooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.As(err, &bad):
		return http.StatusBadRequest
	case errors.As(err, &denied):
		return http.StatusUnprocessableEntity
	case is(os.ErrDeadlineExceeded):
		return http.StatusRequestTimeout
	case is(fleet.ErrUnknown), is(fleet.ErrNoModel), is(fleet.ErrNoPlan):
		return http.StatusNotFound
	case is(fleet.ErrLast), is(fleet.ErrFile), is(fleet.ErrPinned), is(fleet.ErrSame), is(fleet.ErrDenied),
		is(store.ErrNoModule), is(policyslots.ErrReplayed), is(policyslots.ErrNoCandidate), is(policyslots.ErrOther), is(policyslots.ErrNative):
		return http.StatusConflict
	}
	return http.StatusServiceUnavailable
}
