package kvport

import (
	"context"
	"encoding/hex"
	"errors"
	"time"

	"github.com/cascadeinfer/cascade/engine/api"
	wire "github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// offerTimeout bounds the wait for an offer: an engine may name it in its answer a moment before it
// makes it.
const offerTimeout = 2 * time.Second

// Serve lets a peer pull KV of this replica's engine. It sends the one answer, and keeps the KV for
// the peer until ctx ends or the lease does. peer.Config.ServeFetch is this method.
func (c *Client) Serve(ctx context.Context, from policies.ReplicaID, q *wire.FetchKVRequest, answer func(*wire.FetchKVAnswer) error) error {
	s := c.session()
	if s == nil || s.table != nil {
		return errors.New("the engine's KV connector is not available")
	}
	if len(q.GetHandle()) != api.HandleBytes || len(q.GetDigest()) != api.DigestBytes {
		return errors.New("invalid request: a handle of 16 bytes and a digest of 32 are required")
	}
	waiting, cancel := context.WithTimeout(ctx, offerTimeout)
	defer cancel()
	x, err := s.take(waiting, hex.EncodeToString(q.GetHandle()), hex.EncodeToString(q.GetDigest()))
	if err != nil {
		return err
	}
	defer s.release(x)
	c.count(func(n *Stats) { n.Taken++ })
	first := int64(q.GetFirst())
	if first >= int64(len(x.Blocks)) {
		return errors.New("invalid request: no block is wanted")
	}
	set, grant := c.cfg.Paths(), transport.Grant{Migration: "kv/" + x.Handle, Receiver: from, Deadline: x.until}
	offers := set.Export(grant)
	defer set.Revoke(grant.Migration)         // before the release
	if len(offers) == 0 || c.session() != s { // the transports may serve the memory of a later session
		return errors.New("no transport can serve the KV")
	}
	set.Announce(grant.Migration, x.Blocks[first:])
	if err := answer(&wire.FetchKVAnswer{Offers: transport.EncodeOffers(offers), Blocks: x.Blocks[first:], Sums: x.Sums[int(first)*len(s.memory.Regions):]}); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case <-x.over:
		return errLeaseEnd
	}
}
