package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Limits of the admin servers: small requests from people and scrapers.
const (
	adminReadTimeout  = 10 * time.Second
	adminWriteTimeout = 30 * time.Second
	adminMaxHeader    = 16 << 10
)

// admin serves /metrics, /healthz and /readyz of one daemon until ctx ends.
// ready says whether the daemon can take work now.
func admin(ctx context.Context, addr string, metrics prometheus.Gatherer, ready func() bool) error {
	if addr == "" {
		<-ctx.Done()
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !ready() {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
		w.Write([]byte("ok\n"))
	})
	return serve(ctx, addr, mux)
}

// serve runs an HTTP server on addr until ctx ends.
func serve(ctx context.Context, addr string, h http.Handler) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	return serveOn(ctx, l, h)
}

// serveOn runs an HTTP server on a listener, which it closes, until ctx ends.
func serveOn(ctx context.Context, l net.Listener, h http.Handler) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: adminReadTimeout, WriteTimeout: adminWriteTimeout,
		MaxHeaderBytes: adminMaxHeader, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
