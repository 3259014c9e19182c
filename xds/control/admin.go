package control

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Bounds of the admin server.
const (
	adminHeaderTimeout = 5 * time.Second
	adminTimeout       = 30 * time.Second
	adminIdle          = 2 * time.Minute
	adminHeaderBytes   = 16 << 10
)

// adminServer returns the HTTP server for operators and their tools. It listens
// on loopback, where AdmitOrder decides which clients can also change the fleet.
func (c *Control) adminServer() *http.Server {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", c.console)
	mux.Handle("GET /console/", c.console)
	mux.Handle("POST /console/orders/", c.console)
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, c.Status())
	})
	mux.HandleFunc("GET /devices", c.devices)
	mux.HandleFunc("GET /migrations", c.migrations)
	c.handleOrders(mux)
	mux.Handle("POST /replicas/confirm", c.handleCommand(c.confirmRemoval))
	mux.HandleFunc("GET /plan/history", c.planHistory)
	mux.HandleFunc("GET /policies", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusOK, c.Policies(queryKinds(r.URL.Query())...))
	})
	if c.cfg.Records != nil {
		mux.Handle("GET /policies/records", c.cfg.Records)
	}
	mux.HandleFunc("POST /policies/push", c.handlePush)
	mux.Handle("POST /policies/goal", c.handleCommand(c.policyCommand(c.setGoal)))
	mux.Handle("POST /policies/rollback", c.handleCommand(c.policyCommand(c.rollbackPolicies)))
	metrics := c.MetricsHandler()
	for _, path := range []string{"/metrics", "/healthz", "/readyz"} {
		mux.Handle("GET "+path, metrics)
	}
	return &http.Server{
		Handler:           drainBody(maxPush, c.auditOrders(RestrictHosts(c.cfg.AdminHosts, c.restrictOrders(RefuseCrossSite(mux))))),
		ReadHeaderTimeout: adminHeaderTimeout, ReadTimeout: adminTimeout, WriteTimeout: adminTimeout,
		IdleTimeout: adminIdle, MaxHeaderBytes: adminHeaderBytes,
		ErrorLog: slog.NewLogLogger(c.log.Handler(), slog.LevelDebug),
	}
}

// MetricsHandler serves what changes nothing and names no request: /metrics, /healthz and /readyz.
func (c *Control) MetricsHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(c.registry, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if why := c.notReady(); why != "" {
			http.Error(w, why, http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ready\n"))
	})
	return mux
}

// handleOrders registers the orders that the console offers as well as the command line.
func (c *Control) handleOrders(mux *http.ServeMux) {
	mux.Handle("POST /drain", c.handleCommand(c.drainCommand(func(id policies.ReplicaID) fleetstate.Order { return fleetstate.Drain{Replica: id} }, c.replicaStatus)))
	mux.Handle("POST /undrain", c.handleCommand(c.drainCommand(func(id policies.ReplicaID) fleetstate.Order { return fleetstate.Undrain{Replica: id} }, c.undrainedStatus)))
	mux.Handle("POST /plan/pin", c.handleCommand(c.planCommand(func(model string, epoch policies.Epoch, q url.Values) fleetstate.Order {
		return fleetstate.Pin{Model: model, Epoch: epoch, By: q.Get("by")}
	})))
	mux.Handle("POST /plan/unpin", c.handleCommand(c.planCommand(func(model string, _ policies.Epoch, q url.Values) fleetstate.Order {
		return fleetstate.Unpin{Model: model, By: q.Get("by")}
	})))
	mux.Handle("POST /plan/rollback", c.handleCommand(c.planCommand(func(model string, epoch policies.Epoch, q url.Values) fleetstate.Order {
		return fleetstate.Rollback{Model: model, To: epoch, Keep: q.Get("pin") != "", By: q.Get("by")}
	})))
}

// serveAdmin runs the admin server until ctx ends.
func (c *Control) serveAdmin(ctx context.Context, g *errgroup.Group) {
	server := c.adminServer()
	g.Go(func() error {
		if err := server.Serve(c.admin); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		// ctx has ended, so Shutdown gets a context of its own.
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cfg.Stop)
		defer cancel()
		if server.Shutdown(stop) != nil {
			return server.Close()
		}
		return nil
	})
}

// errorBody is the JSON response to a failed request.
type errorBody struct {
	Error string `json:"error"`
}

// writeJSON writes a JSON response.
func writeJSON(w http.ResponseWriter, code int, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("content-type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n'))
}

// writeResult writes the response to a command.
func writeResult(w http.ResponseWriter, out any, err error) {
	if err != nil {
		writeJSON(w, statusCode(err), errorBody{err.Error()})
		return
	}
	writeJSON(w, http.StatusOK, out)
}

// statusCode returns the HTTP status for the error of a command.
func statusCode(err error) int {
	var bad badRequest
	var denied inadmissible
	var large *http.MaxBytesError
	is := func(target error) bool { return errors.Is(err, target) }
	switch {
	case errors.As(err, &large), is(errTooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.As(err, &bad):
		return http.StatusBadRequest
	case errors.As(err, &denied):
		return http.StatusUnprocessableEntity
	case is(os.ErrDeadlineExceeded):
		return http.StatusRequestTimeout
	case is(fleetstate.ErrUnknownReplica), is(fleetstate.ErrUnknownModel), is(fleetstate.ErrNoPlan):
		return http.StatusNotFound
	case is(fleetstate.ErrNothingHeld), is(fleetstate.ErrOtherRemoval), is(fleetstate.ErrLastReplica), is(fleetstate.ErrDrainedByFile), is(fleetstate.ErrPinned), is(fleetstate.ErrSamePlan), is(fleetstate.ErrDenied),
		is(store.ErrNoModule), is(policyslots.ErrReplayed), is(policyslots.ErrNoCandidate), is(policyslots.ErrChanged), is(policyslots.ErrNative):
		return http.StatusConflict
	}
	return http.StatusServiceUnavailable
}
