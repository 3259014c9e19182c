package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// AdminHeader must be on every request that changes something, with any value:
// no page of another site can make a browser send it without asking first.
const AdminHeader = "X-Cascade-Admin"

// Bounds of what an operator may ask.
const (
	// maxCommandBody bounds a body, which nobody reads: an order is in its query.
	maxCommandBody = 4 << 10
	commandTimeout = 10 * time.Second
)

// badRequest is the error of a request that asks for nothing that there is.
type badRequest string

func (m badRequest) Error() string { return string(m) }

// RestrictHosts lets requests through whose Host names loopback, or is one of the
// names. A browser on this machine would give a page of another site what it
// asks for, where that site's name was made to point here.
func RestrictHosts(names []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLoopbackHost(r.Host) && !slices.Contains(names, hostName(r.Host)) {
			writeJSON(w, http.StatusForbidden, errorBody{fmt.Sprintf("host %q: ask for localhost or an address of loopback, or add the name to the admin hosts", r.Host)})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isLoopbackHost says that a Host header names this machine by loopback.
func isLoopbackHost(host string) bool {
	if _, _, err := net.SplitHostPort(host); err != nil {
		host = net.JoinHostPort(strings.Trim(host, "[]"), "80")
	}
	return checkLoopback(host) == nil
}

// hostName is a Host header without its port, in lower case.
func hostName(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

// command changes something and returns what to answer.
type command func(context.Context, url.Values) (any, error)

// handleCommand serves an order, guarded against requests that a browser makes for
// somebody else: the header, or a content type that forms cannot have, needs a
// preflight, which nobody answers.
func handleCommand(give command) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxCommandBody)
		if !requireAdminHeader(w, r) {
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), commandTimeout)
		defer cancel()
		out, err := give(ctx, r.URL.Query())
		if err != nil {
			writeJSON(w, statusCode(err), errorBody{err.Error()})
			return
		}
		writeJSON(w, http.StatusOK, out)
	})
}

// requireAdminHeader says that no page of another site made a browser send the request, and
// answers it otherwise.
func requireAdminHeader(w http.ResponseWriter, r *http.Request) bool {
	kind, _, _ := strings.Cut(r.Header.Get("content-type"), ";")
	if len(r.Header.Values(AdminHeader)) == 0 && strings.TrimSpace(kind) != "application/json" {
		writeJSON(w, http.StatusForbidden, errorBody{"send the header " + AdminHeader + ": 1"})
		return false
	}
	return true
}

// errPoliciesOff says that nobody decides which modules may come.
var errPoliciesOff = errors.New("policies are off: give the control plane the keys that modules must be signed with (policies.keys)")

// inadmissible is why a module may not come, or go so far.
type inadmissible struct{ error }

func (e inadmissible) Unwrap() error { return e.error }

func inadmissibleError(slot string, err error) error {
	return inadmissible{fmt.Errorf("slot %s: %w", slot, err)}
}
