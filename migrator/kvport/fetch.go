package kvport

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/cascadeinfer/cascade/engine/api"
	wire "github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// runFetch executes a fetch of the engine and replies to it.
func (c *Client) runFetch(ctx context.Context, s *session, f api.Fetch) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	err := c.fetch(ctx, s, f)
	cancel() // the holder's engine gets its blocks back
	if err != nil {
		c.log.Info("KV not fetched; the engine computes it", "holder", f.Holder, "blocks", len(f.Blocks), "error", err)
	}
	c.count(func(n *Stats) {
		if err == nil {
			n.Fetched++
		} else {
			n.Failed++
		}
	})
	s.reply(f.ID, err)
}

// fetch pulls the blocks of a fetch. When it returns, its blocks do not change any more.
func (c *Client) fetch(ctx context.Context, s *session, f api.Fetch) error {
	holder := policies.ReplicaID(f.Holder)
	if holder == c.cfg.Self {
		return errors.New("the holder is this replica")
	}
	// Both are valid hexadecimal: the frame was validated.
	handle, _ := hex.DecodeString(f.Handle)
	digest, _ := hex.DecodeString(f.Digest)
	answer, err := c.cfg.Network.FetchKV(ctx, holder, &wire.FetchKVRequest{Handle: handle, Digest: digest, First: uint32(f.First)})
	if err != nil {
		return err
	}
	offers, err := transport.DecodeOffers(holder, answer.GetOffers())
	if err != nil {
		return fmt.Errorf("%s: %w", holder, err)
	}
	if n := len(f.Blocks); len(answer.GetBlocks()) != n || len(answer.GetSums()) != n*len(s.memory.Regions) {
		return fmt.Errorf("%s offers %d blocks and %d checksums, not the %d that are wanted", holder, len(answer.GetBlocks()), len(answer.GetSums()), n)
	}
	plan := transport.Plan{Src: answer.GetBlocks(), Dst: f.Blocks, Sums: answer.GetSums()}
	out, err := c.cfg.Paths().PullBlocks(ctx, holder, offers, s.memory, plan)
	c.count(func(n *Stats) { n.Corrupt += uint64(out.Corrupt) })
	return err
}
