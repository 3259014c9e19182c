package control

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/internal/cleantext"
	"github.com/cascadeinfer/cascade/xds/auditlog"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
)

// maxAuditedError is how much of an answer is kept to find the error in it, in bytes.
const maxAuditedError = 4 << 10

// auditOrders records every request that changes something, with its outcome, whoever refuses it.
func (c *Control) auditOrders(next http.Handler) http.Handler {
	if c.cfg.Audit == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			next.ServeHTTP(w, r)
			return
		}
		record := auditlog.Record{Action: strings.TrimPrefix(r.URL.Path, "/"), From: r.RemoteAddr, By: r.URL.Query().Get("by"), Who: c.userOf(r)}
		o := &orderWriter{ResponseWriter: w}
		next.ServeHTTP(o, r)
		record.Object = strings.TrimSpace(describeQuery(r.URL.Query()) + " " + o.about)
		record.Outcome, record.Reason = o.outcome()
		c.cfg.Audit.Record(record)
	})
}

// userOf returns the local user that sent a request; "" where that is not known.
func (c *Control) userOf(r *http.Request) string {
	client, err := netip.ParseAddrPort(r.RemoteAddr)
	server, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if err != nil || !ok || c.cfg.UserOf == nil {
		return ""
	}
	return c.cfg.UserOf(client, server.AddrPort())
}

// describeQuery returns what an order is about: its parameters but the name of the operator.
func describeQuery(q url.Values) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(q)) {
		if name != "by" {
			out = append(out, name+"="+strings.Join(q[name], ","))
		}
	}
	return strings.Join(out, " ")
}

// orderWriter remembers how an order is answered.
type orderWriter struct {
	http.ResponseWriter
	status int
	body   []byte // the beginning of an error
	about  string // see describeOrder
}

// WriteHeader implements http.ResponseWriter.
func (o *orderWriter) WriteHeader(status int) {
	if o.status == 0 {
		o.status = status
	}
	o.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (o *orderWriter) Write(b []byte) (int, error) {
	if o.status == 0 {
		o.status = http.StatusOK
	}
	if o.status >= http.StatusBadRequest {
		o.body = append(o.body, b[:min(len(b), maxAuditedError-len(o.body))]...)
	}
	return o.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (o *orderWriter) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// outcome returns what became of the order, and the error that it was answered with.
func (o *orderWriter) outcome() (auditlog.Outcome, string) {
	if o.status < http.StatusBadRequest {
		return auditlog.Done, ""
	}
	var e errorBody
	if json.Unmarshal(o.body, &e) != nil || e.Error == "" {
		e.Error = strings.TrimSpace(string(o.body))
	}
	if o.status >= http.StatusInternalServerError || o.status == http.StatusRequestTimeout {
		return auditlog.Failed, e.Error
	}
	return auditlog.Refused, e.Error
}

// describeOrder adds to the record of an order what is not in its query.
func describeOrder(w http.ResponseWriter, format string, args ...any) {
	if o, ok := w.(*orderWriter); ok {
		o.about = fmt.Sprintf(format, args...)
	}
}

// auditPlan records a plan that came into force.
func (c *Control) auditPlan(d fleetstate.Change) {
	c.cfg.Audit.Record(auditlog.Record{Action: auditlog.PlanChange, Object: fmt.Sprintf("model=%s epoch=%d", d.Model, d.Epoch), Outcome: auditlog.Done,
		Reason: d.Decision + ": " + d.Reason, By: d.By})
}

// auditClient records a client that was refused because of its certificate, and auditStream one because of a limit.
func (c *Control) auditClient(client, address string, why error) {
	c.cfg.Audit.Record(auditlog.Record{Action: auditlog.Client, Outcome: auditlog.Refused, Reason: why.Error(), Who: client, From: address})
}

func (c *Control) auditStream(client, address string, why error) {
	c.cfg.Audit.Record(auditlog.Record{Action: auditlog.Stream, Outcome: auditlog.Refused, Reason: why.Error(), Who: client, From: address})
}

// hostRefusals are the modules that hosts refuse, by slot and host, as they were last recorded.
type hostRefusals map[string]string

// audit records the refusals that are new.
func (h hostRefusals) audit(log *auditlog.Log, slots []PolicySummary) {
	now := make(map[string]string)
	for _, s := range slots {
		for _, host := range s.Hosts {
			key := "slot=" + string(s.Slot) + " host=" + host.Node
			if host.Refused == "" {
				continue
			}
			now[key] = host.Refused
			if h[key] != host.Refused {
				log.Record(auditlog.Record{Action: auditlog.ModuleOnHost, Object: key, Outcome: auditlog.Refused, Reason: host.Refused, Who: host.Node})
			}
		}
	}
	clear(h)
	maps.Copy(h, now)
}

// auditFault is the fault of an audit log that lacks records; nil for none.
func (c *Control) auditFault() (out []Fault) {
	if err := c.cfg.Audit.Err(); err != nil {
		out = append(out, Fault{Kind: FaultAudit, Object: "file", Text: cleantext.Truncate("orders, plans and refusals are not recorded: "+err.Error(), maxFaultText)})
	}
	return out
}

// runAudit writes the audit log until the returned function is called, which waits for its end: orders that end while the
// control plane stops are recorded, too.
func (c *Control) runAudit(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.cfg.Audit.Run(ctx) // it returns nil
	}()
	return func() { cancel(); <-ended }
}
