package frontend

import (
	"fmt"
	"net/http"
	"time"
)

// loadHeader is the field in which an answer reports the replica's load to
// proxies, in ORCA's text format. They pass it to the control plane and remove
// it.
const loadHeader = "Endpoint-Load-Metrics"

// loadHeaders are the fields, in lower case, in which engines report their load.
// They are removed, because the engine may be that of another replica than the
// client's.
var loadHeaders = map[string]bool{
	"endpoint-load-metrics": true, "endpoint-load-metrics-bin": true, "endpoint-load-metrics-json": true,
}

// updateLoadHeader updates the load that answers report. The names are those of engines, so
// that engines with and without a front end can be compared.
func (srv *Server) updateLoadHeader() {
	l := srv.engineFacts.addLoad(srv.tracker.State().Load, time.Now())
	srv.updateCrowded(l)
	capacity := srv.engineFacts.capacity()
	if capacity <= 0 || !srv.ready.Load() {
		srv.loadHeader.Store(nil) // the load of an engine that is away is not low but unknown
		return
	}
	text := fmt.Sprintf("TEXT named_metrics.kv_cache_usage_perc=%.4f,named_metrics.num_requests_running=%d,named_metrics.num_requests_waiting=%d",
		min(float64(l.KV())/float64(capacity), 1), l.Running, l.Waiting)
	srv.loadHeader.Store(&text)
}

// withLoadHeaders counts the clients' requests and adds the latest load to every
// answer.
func (srv *Server) withLoadHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		srv.clientRequests.Add(1)
		defer srv.clientRequests.Add(-1)
		if text := srv.loadHeader.Load(); text != nil {
			w.Header().Set(loadHeader, *text)
		}
		next.ServeHTTP(w, r)
	})
}

// ClientRequests returns how many requests of this server's own clients are in
// progress, wherever they run and whether or not the server parses them: those
// that the proxies have in progress at this replica.
func (srv *Server) ClientRequests() int { return int(srv.clientRequests.Load()) }
