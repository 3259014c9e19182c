package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/policies/identity"
	"github.com/cascadeinfer/cascade/xds/control"
)

// Limits of the admin servers: small requests from operators and scrapers.
const (
	adminReadTimeout  = 10 * time.Second
	adminWriteTimeout = 30 * time.Second
	adminIdleTimeout  = 2 * time.Minute
	adminMaxHeader    = 16 << 10
)

// newRegistry returns a registry with the metrics of the process itself.
func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// adminAccess says who may use an admin server.
type adminAccess struct {
	hosts       []string        // host names that requests may carry besides those of loopback
	certs       *certs.Provider // nil: plain text, which is for loopback
	trustDomain string          // of the operators' certificates; "": any certificate of the fleet
}

// serveAdmin serves h on l until ctx ends. A nil l serves nothing. On loopback it serves
// plain text, to requests for loopback or one of the hosts. Elsewhere it serves HTTPS, to
// operators with a certificate.
func serveAdmin(ctx context.Context, l net.Listener, h http.Handler, access adminAccess) error {
	if l == nil {
		<-ctx.Done()
		return nil
	}
	switch local := isLoopback(l.Addr().String()); {
	case local:
		h = control.RestrictHosts(access.hosts, h)
	case access.certs == nil:
		l.Close()
		return fmt.Errorf("admin %s: not a loopback address: set tls, or listen on 127.0.0.1", l.Addr())
	default:
		l, h = access.certs.WrapListener(l), access.requireOperator(h)
	}
	return serveOn(ctx, l, h, adminReadTimeout, adminWriteTimeout)
}

// requireOperator refuses clients whose certificate is not that of an operator.
func (a adminAccess) requireOperator(next http.Handler) http.Handler {
	if a.trustDomain == "" {
		return next
	}
	want := identity.Matcher{TrustDomain: a.trustDomain, Role: identity.Operator}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := want.CheckCertificate(r.TLS.PeerCertificates[0]); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// onlyLocal refuses clients on other hosts, whatever they call this one.
func onlyLocal(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLoopback(r.RemoteAddr) {
			http.Error(w, "only for clients on the same host", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isLoopback reports whether host:port is an address of loopback.
func isLoopback(address string) bool {
	a, err := netip.ParseAddrPort(address)
	return err == nil && a.Addr().Unmap().IsLoopback()
}

// metricsFlag adds --metrics.
func metricsFlag(c *cobra.Command, to *string) {
	c.Flags().StringVar(to, "metrics", "", "host:port of one more server with /metrics, /healthz and /readyz alone; off loopback, over TLS to operators")
}

// listenMetrics opens the listener of --metrics: nil for none.
func listenMetrics(address string) (net.Listener, error) {
	if address == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--metrics: %w", err)
	}
	return l, nil
}

// adminHandler returns the handler of /metrics, /healthz and /readyz of a
// daemon. ready returns why the daemon cannot accept work now; "" if it can.
func adminHandler(metrics prometheus.Gatherer, ready func() string) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if why := ready(); why != "" {
			http.Error(w, why, http.StatusServiceUnavailable)
			return
		}
		w.Write([]byte("ready\n"))
	})
	return mux
}

// serveOn serves h on l, which it closes, until ctx ends. read bounds the time of a
// request and write that of a response; 0 means no bound.
func serveOn(ctx context.Context, l net.Listener, h http.Handler, read, write time.Duration) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: adminReadTimeout, ReadTimeout: read, WriteTimeout: write,
		IdleTimeout: adminIdleTimeout, MaxHeaderBytes: adminMaxHeader, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
