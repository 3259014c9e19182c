// Package adminserver serves the metrics and the admin endpoints of Cascade's daemons.
//
// Serve serves a handler, such as the one that Handler returns, at one address: on loopback in plain text,
// and elsewhere over TLS to operators, so that no daemon shows its state to whoever reaches its port.
package adminserver

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

	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/xds/control"
)

// Limits of the admin servers: small requests from operators and scrapers.
const (
	readTimeout  = 10 * time.Second
	writeTimeout = 30 * time.Second
	idleTimeout  = 2 * time.Minute
	maxHeader    = 16 << 10
)

// NewRegistry returns a registry with the metrics of the process itself.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Access says who may use an admin server.
type Access struct {
	Hosts       []string        // host names that requests may carry besides those of loopback
	Certificate *certs.Provider // the server's own; nil: plain text, which is for loopback
	TrustDomain string          // of the operators' certificates; "": any certificate of the fleet
}

// NewAccess returns who may use the admin servers of a daemon of this fleet, whose certificate is given; nil: it
// has none.
func NewAccess(f config.Fleet, own *certs.Provider) Access {
	return Access{Hosts: f.Control.AdminHosts, Certificate: own, TrustDomain: f.TLS.TrustDomain}
}

// Serve serves h on l until ctx ends. A nil l serves nothing. On loopback it serves
// plain text, to requests for loopback or one of the hosts. Elsewhere it serves HTTPS, to
// operators with a certificate. Nowhere does a request change something that another site's page
// can make a browser send.
func Serve(ctx context.Context, l net.Listener, h http.Handler, access Access) error {
	if l == nil {
		<-ctx.Done()
		return nil
	}
	h = control.RefuseCrossSite(h)
	switch local := IsLoopback(l.Addr().String()); {
	case local:
		h = control.RestrictHosts(access.Hosts, h)
	case access.Certificate == nil:
		l.Close()
		return fmt.Errorf("admin %s: not a loopback address: set tls, or listen on 127.0.0.1", l.Addr())
	default:
		l, h = access.Certificate.WrapListener(l), access.requireOperator(h)
	}
	return ServeOn(ctx, l, h, readTimeout, writeTimeout)
}

// requireOperator refuses clients whose certificate is not that of an operator.
func (a Access) requireOperator(next http.Handler) http.Handler {
	if a.TrustDomain == "" {
		return next
	}
	want := identity.Matcher{TrustDomain: a.TrustDomain, Role: identity.Operator}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := want.CheckCertificate(r.TLS.PeerCertificates[0]); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// OnlyLocal refuses clients on other hosts, whatever they call this one.
func OnlyLocal(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !IsLoopback(r.RemoteAddr) {
			http.Error(w, "only for clients on the same host", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// IsLoopback reports whether host:port is an address of loopback.
func IsLoopback(address string) bool {
	a, err := netip.ParseAddrPort(address)
	return err == nil && a.Addr().Unmap().IsLoopback()
}

// MetricsFlag and MetricsUsage are the flag of one more address of a daemon's metrics.
const (
	MetricsFlag  = "metrics"
	MetricsUsage = "host:port of one more server with /metrics, /healthz and /readyz alone; off loopback, over TLS to operators"
)

// ListenMetrics opens the listener of the address of --metrics, and logs where it listens; nil for none.
func ListenMetrics(address string, log *slog.Logger) (net.Listener, error) {
	if address == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--metrics: %w", err)
	}
	log.Info("listening for scrapers of metrics", "address", l.Addr().String())
	return l, nil
}

// Handler returns the handler of /metrics, /healthz and /readyz of a
// daemon. ready returns why the daemon cannot accept work now; "" if it can.
func Handler(metrics prometheus.Gatherer, ready func() string) *http.ServeMux {
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

// ServeOn serves h on l, which it closes, until ctx ends. read bounds the time of a
// request and write that of a response; 0 means no bound.
func ServeOn(ctx context.Context, l net.Listener, h http.Handler, read, write time.Duration) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: readTimeout, ReadTimeout: read, WriteTimeout: write,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
