package control

import (
	"context"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	loadstatsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/xds/load/lrs"
)

// loads is what proxies report of the load that they see.
type loads struct {
	book    *lrs.Book
	service *lrs.Service
}

// newLoads makes the load reporting service; group is that of the cache.
func (c *Control) newLoads(group func(*corev3.Node) string) (*loads, error) {
	book := lrs.NewBook(lrs.DefaultInterval, group)
	service, err := lrs.New(lrs.Config{Book: book, Logger: c.log})
	if err != nil {
		return nil, err
	}
	return &loads{book, service}, nil
}

// register puts the service on a server that is not serving yet.
func (l *loads) register(server *grpc.Server) {
	loadstatsv3.RegisterLoadReportingServiceServer(server, l.service)
}

// run forgets the proxies that are gone until ctx ends.
func (l *loads) run(ctx context.Context, g *errgroup.Group) {
	g.Go(func() error { return l.service.Run(ctx) })
}

// active is how many requests the proxies have in progress on endpoints of a
// cluster. It is known only when all those that are connected report.
func (c *Control) active(cluster string, addresses []string) (requests int, known bool) {
	now := time.Now()
	reporting := c.loads.book.Reporting(now)
	for _, n := range c.publisher.Status().Nodes {
		if n.Connected && !n.Observer && !reporting[n.ID] {
			return 0, false
		}
	}
	return c.loads.book.Active(now, cluster, addresses)
}

// judge says whether the proxies of a group fare worse since a change, and why.
func (c *Control) judge(group string, since time.Time) (bad bool, why string) {
	return c.loads.book.Judge(time.Now(), group, since)
}
