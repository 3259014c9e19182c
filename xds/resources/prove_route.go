package resources

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	previousprioritiesv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/priority/previous_priorities/v3"
	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// contentLength is the header of the routes that need no estimator. The HTTP codec
// enforces it, so a client cannot lie about it.
const contentLength = "content-length"

func (p *proof) proveRoutes(Set) error {
	for _, name := range slices.Sorted(maps.Keys(p.routes)) {
		f := p.facts[resourceKey{RouteType, name}]
		if p.holds(f.references) {
			continue
		}
		l := &references{stages: make(map[string]string), usesExtProc: p.usesExtProc(), hasLengthCluster: p.clusters[LengthCluster] != nil}
		if err := p.proveRouteConfig(p.routes[name], l); err != nil {
			return fmt.Errorf("route table %q, %w", name, err)
		}
		f.references = l
	}
	return nil
}

func (p *proof) proveRouteConfig(rc *routev3.RouteConfiguration, l *references) error {
	domains := make(map[string]string)
	plans := make(map[string]policies.Plan) // by model; the hosts of a table must agree
	for _, vh := range rc.VirtualHosts {
		for _, d := range vh.Domains {
			d = strings.ToLower(d)
			if other, ok := domains[d]; ok {
				return fmt.Errorf("host %q: domain %q is also %q's", vh.Name, d, other)
			}
			domains[d] = vh.Name
		}
		h := hostProof{proof: p, host: vh, references: l, plans: plans}
		h.kind, h.edge = tableClients(rc.Name)
		if err := h.prove(); err != nil {
			return fmt.Errorf("host %q: %w", vh.Name, err)
		}
	}
	if _, ok := domains["*"]; !ok {
		return errors.New(`no host has the domain "*", so a request can be without a stage`)
	}
	return nil
}

// hostProof proves one virtual host.
type hostProof struct {
	*proof
	host       *routev3.VirtualHost
	references *references // what is read outside the table
	kind       clientKind
	edge       bool                     // the table of proxies, not of gRPC clients
	plans      map[string]policies.Plan // by model, from the previous hosts

	models []LengthMeta // from the host's metadata
	seen   map[string]*modelProof
	ended  bool // the catch-all was seen
	// unestimated says that a route for requests without an estimate was seen. It would take those whose model alone
	// is known from the routes behind it.
	unestimated bool
}

// modelProof follows one model through the routes of a host.
type modelProof struct {
	plan  policies.Plan // rebuilt from the ByTokens routes, without replicas
	model bool          // the ByModel route was seen
	bytes int64         // where the next ByBytes range must start
}

func (h *hostProof) prove() error {
	h.seen = make(map[string]*modelProof)
	routes := h.host.Routes
	if h.edge {
		if err := proveRetry(h.host.RetryPolicy); err != nil {
			return err
		}
		if !h.host.IncludeRequestAttemptCount {
			return errors.New("attempts must be counted, or a request that breaks engines is retried until none is left")
		}
		models, err := ReadLengthMeta(h.host.Metadata)
		if err != nil {
			return err
		}
		h.models = models
		if routes, err = provePublic(h.kind, routes); err != nil {
			return err
		}
	}
	for i, r := range routes {
		if err := h.proveRoute(r); err != nil {
			return fmt.Errorf("route %d %q: %w", len(h.host.Routes)-len(routes)+i, r.Name, err)
		}
	}
	return h.proveComplete()
}

// proveRoute checks one route by itself and then its position.
func (h *hostProof) proveRoute(r *routev3.Route) error {
	if h.ended {
		return errors.New("unreachable: it follows the catch-all")
	}
	if r.GetDirectResponse() != nil {
		return h.proveRefusal(r)
	}
	if r.Name == unestimated {
		return h.proveUnestimated(r)
	}
	a := r.GetRoute()
	if a == nil {
		return errors.New("must lead to a stage or, as a catch-all, respond with an error")
	}
	y, model, k, ok := stageOf(a.GetCluster())
	if !ok || y.kind != h.kind {
		return fmt.Errorf("leads to cluster %q, which is not a stage cluster for the clients of this table", a.GetCluster())
	}
	to := destination{model: model, stage: k}
	if i := slices.IndexFunc(rules[:], func(rule Rule) bool { return r.Name == routeName(model, rule, k) }); i >= 0 {
		to.rule = rules[i]
	} else {
		return fmt.Errorf("leads to stage %d of %q, which its name does not say", k, model)
	}
	if h.unestimated && to.rule != ByNone {
		return errors.New("must stand before the routes for requests without an estimate")
	}
	if h.clusters[a.GetCluster()] == nil {
		return fmt.Errorf("cluster %q does not exist", a.GetCluster())
	}
	if len(h.assignments[y.endpoints(model, k)].GetEndpoints()) == 0 {
		return fmt.Errorf("cluster %q has no endpoint", a.GetCluster())
	}
	h.references.stages[a.GetCluster()] = y.endpoints(model, k)
	if a.Timeout == nil || a.Timeout.AsDuration() != 0 {
		return errors.New("timeout must be 0s; any other cuts token streams, and 15s is the default")
	}
	if a.IdleTimeout.AsDuration() <= 0 {
		return errors.New("idle timeout is missing")
	}
	if a.RetryPolicy != nil {
		if err := proveRetry(a.RetryPolicy); err != nil {
			return err
		}
	}
	var err error
	if to.epoch, err = epochOf(r, k); err != nil {
		return err
	}
	if got := r.TypedPerFilterConfig[ExtProcFilter] != nil; got && to.rule != ByBytes && to.rule != ByNone {
		return errors.New("a request with a length must not be estimated again")
	}
	return h.place(r, to)
}

// destination is what a route leads to, by its cluster, its name and the response header of its epoch.
type destination struct {
	model string
	stage int
	rule  Rule
	epoch policies.Epoch
}

// place checks the route's match against its rule and the previous routes.
func (h *hostProof) place(r *routev3.Route, to destination) error {
	m := h.seen[to.model]
	if m == nil {
		if len(h.models) > 0 && !slices.ContainsFunc(h.models, func(l LengthMeta) bool { return l.Model == to.model }) {
			return fmt.Errorf("model %q is not among those that the host names", to.model)
		}
		m = &modelProof{plan: policies.Plan{Model: to.model, Epoch: to.epoch}}
		h.seen[to.model] = m
	}
	if to.epoch != m.plan.Epoch {
		return fmt.Errorf("epoch %d among routes of epoch %d", to.epoch, m.plan.Epoch)
	}
	if path := r.GetMatch().GetPathSpecifier(); path == nil || strings.TrimPrefix(r.Match.GetPrefix(), "/") != "" || r.Match.GetPrefix() == "" && h.edge {
		return errors.New("must match every path")
	}
	headers := r.Match.Headers
	last := len(m.plan.Stages) - 1
	switch to.rule {
	case ByTokens:
		if m.model || m.bytes > 0 {
			return errors.New("a route by tokens must come before the other routes of its model")
		}
		if h.edge {
			if len(headers) == 0 || !isExact(headers[0], length.ModelHeader, to.model) {
				return fmt.Errorf("must match %s: %s first", length.ModelHeader, to.model)
			}
			headers = headers[1:]
		}
		start, end, err := rangeOf(headers, length.TokensHeader)
		if err != nil {
			return err
		}
		low := policies.Tokens(0)
		if last >= 0 {
			low = m.plan.Stages[last].High
		}
		if policies.Tokens(start) != low || end <= start {
			return fmt.Errorf("range [%d, %d) must start at %d and not be empty", start, end, low)
		}
		if to.stage != last+1 {
			return fmt.Errorf("leads to stage %d; range %d is that of stage %d", to.stage, last+1, last+1)
		}
		m.plan.Stages = append(m.plan.Stages, policies.Stage{Low: policies.Tokens(start), High: policies.Tokens(end)})
		return nil
	case ByModel:
		if m.model || len(headers) != 1 || !isExact(headers[0], length.ModelHeader, to.model) {
			return fmt.Errorf("must be the only route that matches %s: %s alone", length.ModelHeader, to.model)
		}
		m.model = true
		return m.last(to)
	case ByBytes:
		if len(h.models) != 1 {
			return errors.New("a route by size needs a host name that selects the model")
		}
		start, end, err := rangeOf(headers, contentLength)
		if err != nil {
			return err
		}
		if to.stage > last {
			return fmt.Errorf("stage %d has no range of tokens", to.stage)
		}
		cuts := length.Estimator{BytesPerToken: h.models[0].BytesPerToken}
		st := m.plan.Stages[to.stage]
		if start != m.bytes || end <= start || start != cuts.CutBytes(st.Low) || end != cuts.CutBytes(st.High) {
			return fmt.Errorf("bytes [%d, %d) must start at %d and be [%d, %d)", start, end, m.bytes, cuts.CutBytes(st.Low), cuts.CutBytes(st.High))
		}
		m.bytes = end
		return h.estimated(r)
	case ByNone:
		if len(headers) != 0 {
			return errors.New("the catch-all must match everything")
		}
		if len(h.seen) != 1 || len(h.models) > 1 {
			return errors.New("the catch-all must not choose one of several models")
		}
		h.ended = true
		if h.edge {
			if err := h.estimated(r); err != nil {
				return err
			}
		}
		return m.last(to)
	}
	return fmt.Errorf("unknown rule %q", to.rule)
}

// last checks that a route without a range leads to a stage for any length.
func (m *modelProof) last(to destination) error {
	if want := len(m.plan.Stages) - 1; to.stage != want {
		return fmt.Errorf("leads to stage %d; without a range only the last one, %d, is safe", to.stage, want)
	}
	return nil
}

// proveRefusal checks the catch-all of a host of several models.
func (h *hostProof) proveRefusal(r *routev3.Route) error {
	if len(r.GetMatch().GetHeaders()) != 0 || r.Match.GetPrefix() != "/" {
		return errors.New("only the catch-all may answer by itself")
	}
	if status := r.GetDirectResponse().Status; status < 400 || status > 599 {
		return fmt.Errorf("status %d is not an error", status)
	}
	if len(h.models) < 2 {
		return errors.New("a host of one model must serve every request")
	}
	h.ended = true
	return h.estimated(r)
}

// proveUnestimated checks a route of a shared host for requests that no estimator has read yet.
func (h *hostProof) proveUnestimated(r *routev3.Route) error {
	allowed := func(match *routev3.RouteMatch) bool { return proto.Equal(match, r.Match) }
	switch {
	case !slices.ContainsFunc(unestimatedMatches(), allowed):
		return errors.New("must match requests with a body and without an estimate, and no others")
	case r.GetRoute().GetCluster() != unestimated || h.clusters[unestimated] != nil:
		return errors.New("must lead to a cluster that does not exist: its requests have no model")
	case r.GetRoute().ClusterNotFoundResponseCode != routev3.RouteAction_NOT_FOUND:
		return errors.New("must answer 404")
	case len(h.models) < 2:
		return errors.New("a host of one model must serve every request")
	}
	h.unestimated = true
	return h.estimated(r)
}

// estimated checks that the length service gets every request without a length: either
// no host uses it, or all such routes do.
func (h *hostProof) estimated(r *routev3.Route) error {
	packed := r.TypedPerFilterConfig[ExtProcFilter]
	if h.kind == splitEnvoy {
		if packed != nil {
			return fmt.Errorf("%s belongs to the listener's owner and must not be configured here", ExtProcFilter)
		}
		return nil
	}
	if h.references.usesExtProc != (packed != nil) {
		return fmt.Errorf("%s must be enabled on every route that a stripped request can hit, or on none", ExtProcFilter)
	}
	if packed == nil {
		return nil
	}
	if !h.references.hasLengthCluster {
		return fmt.Errorf("%s is enabled without the cluster %q", ExtProcFilter, LengthCluster)
	}
	f, per := new(routev3.FilterConfig), new(extprocv3.ExtProcPerRoute)
	if err := packed.UnmarshalTo(f); err != nil {
		return err
	}
	if f.Disabled || f.Config == nil {
		return fmt.Errorf("%s: must be enabled by a config with overrides", ExtProcFilter)
	}
	if err := f.Config.UnmarshalTo(per); err != nil {
		return err
	}
	if per.GetOverrides() == nil {
		return fmt.Errorf("%s: must be enabled by overrides, which may be empty", ExtProcFilter)
	}
	return nil
}

// usesExtProc reports whether any route of the proxies' table enables ext_proc.
func (p *proof) usesExtProc() bool {
	for _, vh := range p.routes[RouteName].GetVirtualHosts() {
		for _, r := range vh.Routes {
			if r.TypedPerFilterConfig[ExtProcFilter] != nil {
				return true
			}
		}
	}
	return false
}

// proveComplete checks what depends on all routes of the host.
func (h *hostProof) proveComplete() error {
	if !h.ended {
		return errors.New("the catch-all is missing, so a request can be without a stage")
	}
	for _, l := range h.models {
		if h.seen[l.Model] == nil {
			return fmt.Errorf("model %q has no route", l.Model)
		}
	}
	for _, model := range slices.Sorted(maps.Keys(h.seen)) {
		m := h.seen[model]
		n := len(m.plan.Stages)
		if n == 0 || m.plan.Stages[n-1].High != policies.Unbounded {
			return fmt.Errorf("model %q: the last range of tokens must be open", model)
		}
		if h.edge && !m.model {
			return fmt.Errorf("model %q: no route for a request of unknown length", model)
		}
		if h.edge && len(h.models) == 1 && m.bytes != math.MaxInt64 {
			return fmt.Errorf("model %q: the last range of bytes must be open", model)
		}
		before, ok := h.plans[model]
		if !ok {
			h.plans[model] = m.plan
		} else if before.Epoch != m.plan.Epoch || !slices.EqualFunc(before.Stages, m.plan.Stages, func(a, b policies.Stage) bool { return a.Low == b.Low && a.High == b.High }) {
			return fmt.Errorf("model %q: other hosts of the table have another plan", model)
		}
	}
	return nil
}

// proveRetry checks that a request whose replica is gone is retried on another one.
func proveRetry(r *routev3.RetryPolicy) error {
	on := strings.Split(r.GetRetryOn(), ",")
	for _, need := range strings.Split(RetryOn, ",") {
		if !slices.Contains(on, need) {
			return fmt.Errorf("retry policy: must retry on %s", need)
		}
	}
	for _, c := range on {
		if !slices.Contains(strings.Split(RetryOn, ","), c) {
			return fmt.Errorf("retry policy: %s may repeat a request that a replica has answered", c)
		}
	}
	if h := r.GetRetriableHeaders(); len(h) != 1 || h[0].GetName() != length.RefusedHeader || !h[0].GetPresentMatch() || h[0].GetInvertMatch() {
		return fmt.Errorf("retry policy: must retry on answers with %s, by which a replica asks for another one, and on no others", length.RefusedHeader)
	}
	if r.GetNumRetries().GetValue() == 0 || len(r.GetRetryHostPredicate()) == 0 || r.GetHostSelectionRetryMaxAttempts() == 0 {
		return errors.New("retry policy: must retry on another endpoint")
	}
	if !r.GetRetryPriority().GetTypedConfig().MessageIs(&previousprioritiesv3.PreviousPrioritiesConfig{}) {
		return errors.New("retry policy: without previous_priorities a stage of one replica answers 503 until it is ejected")
	}
	return nil
}

// epochOf returns the epoch that a route's response headers state. They must state its stage, too.
func epochOf(r *routev3.Route, stage int) (policies.Epoch, error) {
	values := make(map[string]string)
	for _, o := range r.ResponseHeadersToAdd {
		values[o.GetHeader().GetKey()] = o.GetHeader().GetValue()
	}
	for _, name := range [...]string{length.StageHeader, length.EpochHeader} {
		if _, ok := values[name]; !ok {
			return 0, fmt.Errorf("response header %s is missing", name)
		}
	}
	if got, want := values[length.StageHeader], StageName(stage); got != want {
		return 0, fmt.Errorf("response header %s says %q, want %q", length.StageHeader, got, want)
	}
	epoch, err := strconv.ParseUint(values[length.EpochHeader], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("response header %s: %w", length.EpochHeader, err)
	}
	return policies.Epoch(epoch), nil
}

func isExact(m *routev3.HeaderMatcher, header, value string) bool {
	return m.GetName() == header && !m.GetInvertMatch() && m.GetStringMatch().GetExact() == value && value != ""
}

// rangeOf returns the range of the only header matcher.
func rangeOf(headers []*routev3.HeaderMatcher, name string) (start, end int64, err error) {
	if len(headers) != 1 || headers[0].GetName() != name || headers[0].GetRangeMatch() == nil || headers[0].GetInvertMatch() {
		return 0, 0, fmt.Errorf("must match a range of %s and nothing else", name)
	}
	return headers[0].GetRangeMatch().Start, headers[0].GetRangeMatch().End, nil
}
