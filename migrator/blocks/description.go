package blocks

import (
	"fmt"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// What an engine may say of itself.
const (
	maxPool        = 1 << 44 // bytes
	maxBlocks      = 1 << 31
	maxBlockTokens = 1 << 20
	maxRegions     = 1024
)

// Description is what an engine says of its pool. It never changes while the
// engine lives.
type Description struct {
	Model       string
	BlockTokens int // tokens per block, ≥ 1
	// Layout fits PoolBytes.
	Layout    transport.Layout
	PoolBytes int64
	// TokenBytes is what a link has to carry per token: bytes on the real engine,
	// all ranks together. 0 if it does not say.
	TokenBytes policies.Bytes
	// Fingerprint is equal for engines that can read each other's blocks.
	Fingerprint uint64
}

// BlocksFor is how many blocks hold so many tokens.
func (d Description) BlocksFor(tokens int) int {
	return (tokens + d.BlockTokens - 1) / d.BlockTokens
}

// decodeDescription takes over what an engine says, once it makes sense.
func decodeDescription(d *api.Description) (Description, error) {
	bad := func(format string, args ...any) (Description, error) {
		return Description{}, fmt.Errorf("the engine describes its pool wrongly: "+format, args...)
	}
	switch {
	case d.BlockTokens < 1 || d.BlockTokens > maxBlockTokens:
		return bad("block_tokens is %d", d.BlockTokens)
	case d.Blocks < 1 || d.Blocks > maxBlocks:
		return bad("blocks is %d", d.Blocks)
	case d.PoolBytes > maxPool:
		return bad("pool_bytes is %d", d.PoolBytes)
	case len(d.Regions) > maxRegions:
		return bad("%d regions", len(d.Regions))
	case d.TokenBytes > maxPool:
		return bad("token_bytes is %d", d.TokenBytes)
	}
	l := transport.Layout{Blocks: int(d.Blocks)}
	for i, r := range d.Regions {
		if max(r.GetOffset(), r.GetStride(), r.GetBytes()) > maxPool {
			return bad("region %d: offset %d, stride %d, %d bytes", i, r.GetOffset(), r.GetStride(), r.GetBytes())
		}
		l.Regions = append(l.Regions, transport.Region{Offset: int64(r.GetOffset()), Stride: int64(r.GetStride()), Bytes: int64(r.GetBytes())})
	}
	if err := l.Validate(int64(d.PoolBytes)); err != nil {
		return bad("%w", err)
	}
	return Description{
		Model: d.Model, BlockTokens: int(d.BlockTokens), Layout: l, PoolBytes: int64(d.PoolBytes),
		TokenBytes: policies.Bytes(d.TokenBytes), Fingerprint: d.Fingerprint,
	}, nil
}
