package frontend

import (
	"fmt"
	"net/http"
)

// metricsHeader is where an answer tells proxies of the replica's load, in the
// text form of ORCA. They report it to the control plane and take it out.
const metricsHeader = "Endpoint-Load-Metrics"

// toldByEngines are the fields, in lower case, in which an engine may do so: it
// need not be the client's replica's engine, so the front speaks for it.
var toldByEngines = map[string]bool{
	"endpoint-load-metrics": true, "endpoint-load-metrics-bin": true, "endpoint-load-metrics-json": true,
}

// measure renews what answers tell of the load. The names are those of vLLM, so
// that engines with and without a front compare.
func (f *Front) measure() {
	if f.cfg.KV <= 0 {
		return
	}
	l := f.tracker.Read().Load
	text := fmt.Sprintf("TEXT named_metrics.kv_cache_usage_perc=%.4f,named_metrics.num_requests_running=%d,named_metrics.num_requests_waiting=%d",
		min(float64(l.Held)/float64(f.cfg.KV), 1), l.Running, l.Waiting)
	f.metrics.Store(&text)
}

// telling counts the clients' requests and lets every answer tell of the load,
// as it was a moment ago.
func (f *Front) telling(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.clients.Add(1)
		defer f.clients.Add(-1)
		if text := f.metrics.Load(); text != nil {
			w.Header().Set(metricsHeader, *text)
		}
		next.ServeHTTP(w, r)
	})
}

// Clients is how many requests of this front's own clients are in progress,
// wherever they run and whether or not the front understands them: what the
// proxies in front of it have in progress here.
func (f *Front) Clients() int { return int(f.clients.Load()) }
