package control

import (
	"context"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/internal/reports"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// proxyLoads is the load that proxies report.
type proxyLoads struct {
	book    *reports.Book
	service *reports.LRSService
	// assignments holds, by cluster name, the endpoint assignments that a stage's
	// clusters use, under all their resource names.
	assignments map[string][]string
}

var (
	_ publish.RequestCounter = (*proxyLoads)(nil)
	_ publish.Monitor        = (*proxyLoads)(nil)
)

// newLoads creates the load reporting service. The groups are those of the
// cache.
func (c *Control) newLoads(groups *resources.Groups) (*proxyLoads, error) {
	book := reports.NewBook(reports.DefaultInterval, func(n *corev3.Node) string { return groups.GroupOf(n.GetId(), n.GetCluster()) })
	service, err := reports.NewLRS(reports.Config{Book: book, Admit: c.admitReports, Logger: c.log})
	if err != nil {
		return nil, err
	}
	return &proxyLoads{book, service, assignmentsByCluster(c.cfg.Models)}, nil
}

// admitReports refuses the load reports of nodes that do not count: they could roll back
// every plan, too.
func (c *Control) admitReports(_ context.Context, node string) error {
	if c.isProxy(node) {
		return nil
	}
	return status.Errorf(codes.PermissionDenied, "load report: node %.80q is not in proxy.nodes, so its reports do not count", node)
}

// assignmentsByCluster lists the endpoint assignments of every stage by its
// cluster.
func assignmentsByCluster(models []fleet.Model) map[string][]string {
	out := make(map[string][]string)
	for _, m := range models {
		for k := range policies.MaxStages {
			out[resources.ClusterName(m.Name, k)] = []string{resources.EndpointName(m.Name, k), resources.FederatedEndpointName(m.Name, k)}
		}
	}
	return out
}

// ActiveRequests implements publish.RequestCounter. Clusters with the same endpoints
// count as one; nodes that report no load do not delay the result.
func (l *proxyLoads) ActiveRequests(cluster string, addresses []string) (requests int, known bool) {
	now := time.Now()
	for _, service := range l.assignments[cluster] {
		n, ok := l.book.Active(now, service, addresses)
		if !ok {
			return 0, false
		}
		requests += n
	}
	return requests, l.assignments[cluster] != nil
}

// Regression implements publish.Monitor by the outcomes of the proxies'
// requests.
func (l *proxyLoads) Regression(group string, since time.Time) (bad bool, why string) {
	return l.book.Judge(time.Now(), group, since)
}
