package migratord

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/kvport"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// newPrefixCopier builds what copies prefixes from and to the engine's cache.
func (d *Daemon) newPrefixCopier() (err error) {
	d.prefixes, err = kvport.NewCopier(kvport.CopierConfig{
		Engine: d.kv, Network: d.network, Paths: d.paths,
		CanReceive:    func() bool { return d.deviceDown() == nil },
		MaxConcurrent: d.cfg.Fleet.Migration.MaxConcurrent, Tracer: d.cfg.Tracer, Logger: d.cfg.Logger,
	})
	return err
}

// servePrefix serves calls of FetchPrefix of peers.
func (d *Daemon) servePrefix(ctx context.Context, from policies.ReplicaID, q *api.FetchPrefixRequest, answer func(*api.FetchPrefixAnswer) error) error {
	if d.prefixes == nil {
		return status.Error(codes.Unimplemented, "this replica's engine serves no block table")
	}
	return d.prefixes.Serve(ctx, from, q, answer)
}

// prefixPull returns how the front end pulls prefixes; nil if it does not.
func (d *Daemon) prefixPull() *frontend.PrefixPull {
	rates, ok := d.cfg.Fleet.PrefixPull(d.cfg.Replica)
	if !ok {
		return nil
	}
	c := &frontend.PrefixPull{
		Holders: d.market, TokenBytes: rates.TokenBytes, MaxConcurrent: d.cfg.Fleet.Migration.MaxConcurrent, Reason: pullFailure,
		OnPull: func(p frontend.PulledPrefix) { d.pulled.add(encodePull(p, d.id, rates.TokenBytes)) },
		Link: func(peer policies.ReplicaID) links.Path {
			w, known := d.linksToPeers()[peer]
			if !known {
				w = links.Path{Rate: d.cfg.Fleet.Links().BetweenHosts}
			}
			if most := rates.MaxRate; most > 0 && w.Rate > most {
				w.Rate = most
			}
			return w
		},
	}
	if d.prefixes != nil {
		c.Copier = prefixCopier{d.prefixes}
	}
	return c
}

// prefixCopier is the front end's view of a Copier.
type prefixCopier struct{ *kvport.Copier }

// Copy implements frontend.PrefixCopier.
func (c prefixCopier) Copy(ctx context.Context, holder policies.ReplicaID, p frontend.PromptPrefix) (policies.Tokens, string, error) {
	pulled, err := c.Pull(ctx, holder, kvport.Prefix(p))
	return pulled.Tokens, pulled.Transport, err
}

// pullFailure names the reason of a failed pull, for metrics.
func pullFailure(err error) string {
	corrupt := (*transport.CorruptError)(nil)
	switch {
	case errors.Is(err, kvport.ErrBusy):
		return "busy"
	case errors.Is(err, kvport.ErrGone):
		return "gone"
	case errors.Is(err, kvport.ErrFull):
		return "full"
	case errors.As(err, &corrupt):
		return "corrupt"
	case errors.Is(err, kvport.ErrDifferent):
		return "different"
	case errors.Is(err, kvport.ErrUnavailable), errors.Is(err, kvport.ErrNoPrefixes), errors.Is(err, kvport.ErrNoMemory):
		return "unavailable"
	}
	return "failed"
}

// PrefixesServed returns what peers have pulled of the engine's cache.
func (d *Daemon) PrefixesServed() kvport.Served {
	if d.prefixes == nil {
		return kvport.Served{}
	}
	return d.prefixes.Served()
}
