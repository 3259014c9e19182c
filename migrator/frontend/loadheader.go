package frontend

import (
	"fmt"
	"net/http"
)

// loadHeader is where an answer tells proxies of the replica's load, in the
// text form of ORCA. They report it to the control plane and take it out.
const loadHeader = "Endpoint-Load-Metrics"

// loadHeaders are the fields, in lower case, in which an engine may do so: it
// need not be the client's replica's engine, so the front speaks for it.
var loadHeaders = map[string]bool{
	"endpoint-load-metrics": true, "endpoint-load-metrics-bin": true, "endpoint-load-metrics-json": true,
}

// updateLoadHeader renews what answers tell of the load. The names are those of vLLM, so
// that engines with and without a front compare.
func (srv *Server) updateLoadHeader() {
	if srv.cfg.KVTokens <= 0 {
		return
	}
	l := srv.tracker.State().Load
	text := fmt.Sprintf("TEXT named_metrics.kv_cache_usage_perc=%.4f,named_metrics.num_requests_running=%d,named_metrics.num_requests_waiting=%d",
		min(float64(l.Held)/float64(srv.cfg.KVTokens), 1), l.Running, l.Waiting)
	srv.loadHeader.Store(&text)
}

// withLoadHeaders counts the clients' requests and lets every answer tell of the load,
// as it was a moment ago.
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

// ClientRequests is how many requests of this front's own clients are in progress,
// wherever they run and whether or not the front understands them: what the
// proxies in front of it have in progress here.
func (srv *Server) ClientRequests() int { return int(srv.clientRequests.Load()) }
