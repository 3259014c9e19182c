package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

// AdminHeader must be on every request that changes something, with any value; see
// RefuseCrossSite.
const AdminHeader = "X-Cascade-Admin"

// Bounds of a command.
const (
	// maxCommandBody bounds a body, which is ignored: a command is in its
	// query.
	maxCommandBody = 4 << 10
	commandTimeout = 10 * time.Second
)

// badRequest is the error of a request that is malformed or names something
// unknown.
type badRequest string

func (m badRequest) Error() string { return string(m) }

// RestrictHosts passes requests whose Host is a loopback address or one of the
// names. It protects against DNS rebinding: a page of another site whose name
// resolves to this host could make a browser on it send requests here.
func RestrictHosts(names []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLoopbackHost(r.Host) && !slices.Contains(names, hostName(r.Host)) {
			writeJSON(w, http.StatusForbidden, errorBody{fmt.Sprintf("host %q: use localhost or a loopback address, or add the name to the admin hosts", r.Host)})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// restrictOrders refuses requests that change something to clients that may not give
// orders.
func (c *Control) restrictOrders(next http.Handler) http.Handler {
	if c.cfg.AdmitOrder == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			client, err := netip.ParseAddrPort(r.RemoteAddr)
			server, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
			if err == nil && server != nil {
				err = c.cfg.AdmitOrder(client, server.AddrPort())
			}
			if err != nil || server == nil {
				c.log.Warn("order refused", "path", r.URL.Path, "client", r.RemoteAddr, "error", err)
				writeJSON(w, http.StatusForbidden, errorBody{fmt.Sprintf("order refused: %v; use the control plane's own user, or add the user to control.admin_users", err)})
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// isLoopbackHost reports whether a Host header names a loopback address.
func isLoopbackHost(host string) bool {
	if _, _, err := net.SplitHostPort(host); err != nil {
		host = net.JoinHostPort(strings.Trim(host, "[]"), "80")
	}
	return checkLoopback(host) == nil
}

// hostName returns a Host header without its port, in lower case.
func hostName(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

// command changes something and returns the response.
type command func(context.Context, url.Values) (any, error)

// handleCommand serves a command. What it has changed is in the status when it is answered.
func (c *Control) handleCommand(give command) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxCommandBody)
		ctx, cancel := context.WithTimeout(r.Context(), commandTimeout)
		defer cancel()
		out, err := give(ctx, r.URL.Query())
		c.observer.expire()
		writeResult(w, out, err)
	})
}

// RefuseCrossSite refuses requests, other than reads, that a page of another site can make a browser
// send. The header, or a content type that forms cannot have, makes a browser send a preflight
// request first, which is not answered. Every admin server of every daemon uses it.
func RefuseCrossSite(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind, _, _ := strings.Cut(r.Header.Get("content-type"), ";")
		if r.Method != http.MethodGet && r.Method != http.MethodHead && len(r.Header.Values(AdminHeader)) == 0 && strings.TrimSpace(kind) != "application/json" {
			writeJSON(w, http.StatusForbidden, errorBody{"send the header " + AdminHeader + ": 1"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// errPoliciesOff is the error of commands that need an Admitter.
var errPoliciesOff = errors.New("policies are off: give the control plane the keys that modules must be signed with (policies.keys)")

// inadmissible is why a module was not admitted, or not for a goal.
type inadmissible struct{ error }

func (e inadmissible) Unwrap() error { return e.error }

func inadmissibleError(slot lifecycle.Kind, err error) error {
	return inadmissible{fmt.Errorf("slot %s: %w", slot, err)}
}
