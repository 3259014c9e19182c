package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Limits of the admin servers: small requests from people and scrapers.
const (
	adminReadTimeout  = 10 * time.Second
	adminWriteTimeout = 30 * time.Second
	adminMaxHeader    = 16 << 10
)

// listenAdmin opens the admin address of a daemon; nil where it has none.
func listenAdmin(addr string) (net.Listener, error) {
	if addr == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	return l, nil
}

// newRegistry returns a registry that tells of the process itself.
func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// serveAdmin serves what adminHandler answers on l, if not nil, until ctx ends.
func serveAdmin(ctx context.Context, l net.Listener, h http.Handler) error {
	if l == nil {
		<-ctx.Done()
		return nil
	}
	return serveOn(ctx, l, h, adminWriteTimeout)
}

// adminHandler answers /metrics, /healthz and /readyz of one daemon. ready says why
// the daemon cannot take work now; "" that it can.
func adminHandler(metrics prometheus.Gatherer, ready func() string) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
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

// serveOn runs an HTTP server on a listener, which it closes, until ctx ends.
// write bounds the time of an answer; 0 does not.
func serveOn(ctx context.Context, l net.Listener, h http.Handler, write time.Duration) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: adminReadTimeout, WriteTimeout: write,
		MaxHeaderBytes: adminMaxHeader, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
