package control

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Bounds of the admin server.
const (
	adminHeaderTimeout = 5 * time.Second
	adminTimeout       = 30 * time.Second
	adminIdle          = 2 * time.Minute
	adminHeaderBytes   = 16 << 10
)

// adminServer serves what operators and their tools ask. Who may connect may
// change what orders change: it is on loopback.
func (c *Control) adminServer() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, c.Status())
	})
	mux.HandleFunc("GET /devices", c.devices)
	mux.HandleFunc("GET /migrations", c.migrations)
	mux.Handle("POST /drain", ordered(drainOrder(c.fleet.Drain, c.replicaStatus)))
	mux.Handle("POST /undrain", ordered(drainOrder(c.fleet.Undrain, c.replicaStatus)))
	c.planRoutes(mux)
	c.policyRoutes(mux)
	mux.Handle("GET /metrics", promhttp.HandlerFor(c.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !c.Ready() {
			http.Error(w, "no plan was published yet", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ready\n"))
	})
	return &http.Server{
		Handler:           drained(maxPush, OwnHosts(c.cfg.AdminHosts, mux)),
		ReadHeaderTimeout: adminHeaderTimeout, ReadTimeout: adminTimeout, WriteTimeout: adminTimeout,
		IdleTimeout: adminIdle, MaxHeaderBytes: adminHeaderBytes,
	}
}
