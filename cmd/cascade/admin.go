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

// Limits of the admin servers: small requests from operators and scrapers.
const (
	adminReadTimeout  = 10 * time.Second
	adminWriteTimeout = 30 * time.Second
	adminMaxHeader    = 16 << 10
)

// listenAdmin opens the admin address of a daemon; nil for an empty address.
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

// newRegistry returns a registry with the metrics of the process itself.
func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// serveAdmin serves h on l until ctx ends. A nil l serves nothing.
func serveAdmin(ctx context.Context, l net.Listener, h http.Handler) error {
	if l == nil {
		<-ctx.Done()
		return nil
	}
	return serveOn(ctx, l, h, adminWriteTimeout)
}

// adminHandler returns the handler of /metrics, /healthz and /readyz of a
// daemon. ready returns why the daemon cannot accept work now; "" if it can.
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

// serveOn serves h on l, which it closes, until ctx ends. write bounds the time
// of a response; 0 means no bound.
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
