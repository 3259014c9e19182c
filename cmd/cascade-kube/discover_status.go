package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cascadeinfer/cascade/cmd/internal/discovery"
	"github.com/cascadeinfer/cascade/xds/control"
)

// serveStatus serves the admin endpoints of "cascade-kube discover" on l, which it
// closes, until ctx ends.
func serveStatus(ctx context.Context, l net.Listener, k *keeper) error {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(discoveryCollector{k})
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if s := k.status(time.Now()); s.WrittenAt == nil {
			http.Error(w, "the fleet file is not written yet: "+strings.Join(s.Faults, "; "), http.StatusServiceUnavailable)
			return
		}
		w.Write([]byte("ready\n"))
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		_ = e.Encode(k.status(time.Now())) // fails only where the client is gone
	})
	// A page in a browser on this host must not read the status by a name of its own.
	return serveLocal(ctx, l, control.RestrictHosts(nil, mux))
}

// serveLocal serves h on l, which it closes, until ctx ends.
func serveLocal(ctx context.Context, l net.Listener, h http.Handler) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: statusTimeout, ReadTimeout: statusTimeout, WriteTimeout: statusTimeout,
		MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// discoveryCollector has the metrics of discovery.
type discoveryCollector struct{ k *keeper }

var (
	podsDesc   = prometheus.NewDesc("cascade_discovery_pods", "Pods that the pool or Service selects, by what they are to the fleet.", []string{"state"}, nil)
	faultsDesc = prometheus.NewDesc("cascade_discovery_faults", "Reasons why the fleet file may differ from the cluster.", nil, nil)
	writesDesc = prometheus.NewDesc("cascade_discovery_writes_total", "Times that the fleet file was written.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c discoveryCollector) Describe(out chan<- *prometheus.Desc) {
	out <- podsDesc
	out <- faultsDesc
	out <- writesDesc
}

// Collect implements prometheus.Collector.
func (c discoveryCollector) Collect(out chan<- prometheus.Metric) {
	s := c.k.status(time.Now())
	for _, state := range [...]discovery.State{discovery.LeftOut, discovery.Serving, discovery.Draining, discovery.Kept} {
		out <- prometheus.MustNewConstMetric(podsDesc, prometheus.GaugeValue, float64(s.counts[state]), strings.ReplaceAll(state.String(), " ", "_"))
	}
	out <- prometheus.MustNewConstMetric(faultsDesc, prometheus.GaugeValue, float64(len(s.Faults)))
	out <- prometheus.MustNewConstMetric(writesDesc, prometheus.CounterValue, float64(s.writes))
}
