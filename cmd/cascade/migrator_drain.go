package main

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"

	"github.com/cascadeinfer/cascade/cmd/internal/localuser"
	"github.com/cascadeinfer/cascade/policies"
)

// drainHandler serves POST /drain: it calls drain, and answers 202 while the load has
// requests, and 200 once the engine may be stopped. The hook that asks repeats the request.
func drainHandler(drain func(), load func() policies.Load) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		drain()
		if l := load(); l.Running+l.Waiting > 0 {
			w.WriteHeader(http.StatusAccepted)
			fmt.Fprintf(w, "%d running and %d waiting requests are left at the engine\n", l.Running, l.Waiting)
			return
		}
		fmt.Fprintln(w, "the engine has no requests")
	})
}

// localOrders serves h to clients on this host that run as one of the users, as orders to the
// control plane are.
func localOrders(users []string, h http.Handler) http.Handler {
	operators, err := localuser.New(users)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		why := err
		if why == nil {
			var client netip.AddrPort
			server, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
			if client, why = netip.ParseAddrPort(r.RemoteAddr); why == nil && server != nil {
				why = operators.Admit(client, server.AddrPort())
			}
		}
		if why != nil {
			http.Error(w, fmt.Sprintf("order refused: %v; use the migrator's own user, or add the user to control.admin_users", why), http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}
