package emulator

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/kvport"
	"github.com/cascadeinfer/cascade/policies"
)

// Defaults of Config, vLLM's where it has them.
const (
	defaultContext       = 131_072
	defaultBlockTokens   = 16
	defaultBatchedTokens = 8192
	defaultSlotBytes     = 64
	maxBlockTokens       = 1024
	maxSpeed             = 100_000
)

// Config configures one emulated replica. Model and Profile are required.
type Config struct {
	// Model is the served model's name. It also seeds the emulated model: replicas with
	// equal names continue equal ids identically.
	Model string
	// Adapters are the loaded LoRA adapters. A request for an adapter instead of the model
	// gets a text of its own.
	Adapters []string
	// Profile is the cost model of one replica on one rank at real speed, such as one of
	// cost.Builtin.
	Profile cost.Profile
	// Speed is the factor by which the replica runs faster than real time: iteration times
	// are divided by it. 0 means 1.
	Speed float64
	// TensorParallel is the number of ranks, applied by Profile.TensorParallel. 0 means 1.
	TensorParallel int

	// Context is the maximum number of tokens of prompt and output together (vLLM's
	// max_model_len). 0 means 131072, or the size of the KV cache if that is less.
	Context policies.Tokens
	// KVTokens is the size of the KV cache in tokens, rounded down to whole
	// blocks. 0 means the profile's, all ranks together.
	KVTokens policies.Tokens
	// BlockTokens is the number of tokens per KV block. 0 means 16.
	BlockTokens int
	// SlotBytes is the number of KV bytes per token that are really stored: a multiple of
	// 8. 0 means 64. It is independent of the profile's kv_bytes_per_token, which only
	// paces transfers. Replicas that continue each other's texts need equal SlotBytes.
	SlotBytes int
	// NoPrefixCache disables prefix caching.
	NoPrefixCache bool

	// MaxBatch is the number of sequences that run at once (max_num_seqs). 0 means the
	// profile's.
	MaxBatch int
	// MaxBatchedTokens bounds the tokens of one iteration, decodes and prompt
	// chunks together (max_num_batched_tokens). 0 means 8192. It is at least
	// MaxBatch.
	MaxBatchedTokens int

	// Blocks is the directory in which the replica serves its block table, by kv.sock
	// (engine/api), for processes of the same user. It is created if it does
	// not exist. A directory that another replica serves is rejected; a stale socket is
	// replaced. "" disables the block table and with it live migration.
	Blocks string

	// Device allocates the memory of the KV pool on a device, of at least so many bytes,
	// when Run starts; Run closes it. Run returns an error when the device fails. nil keeps
	// the pool in shared memory.
	Device func(bytes int64) (kv.Memory, error)

	// KVSocket is the KV connector, with which a request's KV goes to another engine by way of the
	// migrators of both. nil is an engine without one: it ignores kv_transfer_params.
	KVSocket *KVSocket

	// KVConnector is another KV connector instead of KVSocket.
	KVConnector KVConnector

	// KVEvents publishes what the prefix cache holds, as vLLM with --kv-events-config does. nil is an
	// engine without events.
	KVEvents *KVEvents

	// Faults are the faults until SetFaults.
	Faults Faults

	// Vocabulary may be shared by the replicas of a process, to save 5 MB each. nil loads one.
	Vocabulary *model.Vocabulary
	// Logger logs starts, stops and lag. nil discards.
	Logger *slog.Logger
}

// withDefaults fills in the zero fields.
func (c Config) withDefaults() Config {
	c.Speed = cmp.Or(c.Speed, 1)
	c.TensorParallel = cmp.Or(c.TensorParallel, 1)
	p := c.Profile.TensorParallel(c.TensorParallel)
	c.KVTokens = cmp.Or(c.KVTokens, p.KVTokens)
	c.BlockTokens = cmp.Or(c.BlockTokens, defaultBlockTokens)
	c.Context = cmp.Or(c.Context, min(defaultContext, c.KVTokens/policies.Tokens(max(c.BlockTokens, 1))*policies.Tokens(max(c.BlockTokens, 1))))
	c.SlotBytes = cmp.Or(c.SlotBytes, defaultSlotBytes)
	c.MaxBatch = cmp.Or(c.MaxBatch, p.MaxBatch)
	c.MaxBatchedTokens = max(cmp.Or(c.MaxBatchedTokens, defaultBatchedTokens), c.MaxBatch)
	if c.KVSocket != nil {
		k := c.KVSocket.withDefaults(c.layout().Blocks)
		c.KVSocket = &k
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// validate checks a config after withDefaults.
func (c Config) validate() error {
	bad := func(field, format string, args ...any) error {
		return fmt.Errorf("emulator config: %s: "+format, append([]any{field}, args...)...)
	}
	switch {
	case c.Model == "" || strings.TrimSpace(c.Model) != c.Model:
		return bad("Model", "name the served model, without surrounding spaces, not %q", c.Model)
	case slices.Contains(c.Adapters, "") || slices.Contains(c.Adapters, c.Model):
		return bad("Adapters", "each needs a name that is not the model's")
	case !(c.Speed > 0) || c.Speed > maxSpeed:
		return bad("Speed", "must be positive and at most %d, not %v", maxSpeed, c.Speed)
	case c.TensorParallel < 1:
		return bad("TensorParallel", "must be at least 1, not %d", c.TensorParallel)
	case c.BlockTokens < 1 || c.BlockTokens > maxBlockTokens:
		return bad("BlockTokens", "must be 1 to %d, not %d", maxBlockTokens, c.BlockTokens)
	case c.SlotBytes < model.SlotQuantum || c.SlotBytes%model.SlotQuantum != 0:
		return bad("SlotBytes", "must be a positive multiple of %d, not %d", model.SlotQuantum, c.SlotBytes)
	case c.KVTokens < policies.Tokens(c.BlockTokens):
		return bad("KVTokens", "must hold at least one block of %d tokens, not %d", c.BlockTokens, int64(c.KVTokens))
	case c.Context < 2:
		return bad("Context", "must be at least 2 tokens, one in and one out, not %d", int64(c.Context))
	case c.Context > c.KVTokens/policies.Tokens(c.BlockTokens)*policies.Tokens(c.BlockTokens):
		return bad("Context", "is %d tokens, but the KV cache holds %d; raise KVTokens or lower Context", int64(c.Context), int64(c.KVTokens))
	case c.KVSocket != nil && (c.KVConnector != nil || c.Blocks != "" || c.KVSocket.Dir == "" || len(c.KVSocket.Dir) > kvport.MaxDir || c.KVSocket.Slots < 1 || c.KVSocket.FetchTimeout < 0):
		return bad("KVSocket", "needs a Dir of at most %d bytes, no negative size or time, no KVConnector and no Blocks", kvport.MaxDir)
	case c.MaxBatch < 1:
		return bad("MaxBatch", "must be positive, not %d", c.MaxBatch)
	case c.MaxBatchedTokens < 1:
		return bad("MaxBatchedTokens", "must be positive, not %d", c.MaxBatchedTokens)
	}
	if c.KVEvents != nil {
		if err := c.KVEvents.Validate(); err != nil {
			return bad("KVEvents", "%w", err)
		}
	}
	if err := c.Faults.validate(); err != nil {
		return bad("Faults", "%w", err)
	}
	if block := c.BlockTokens * c.SlotBytes; c.Blocks != "" && block%c.TensorParallel != 0 {
		return bad("Blocks", "a block of %d bytes (BlockTokens · SlotBytes) cannot be divided among %d ranks; choose SlotBytes so that it can", block, c.TensorParallel)
	}
	if len(c.Blocks) > kvport.MaxDir {
		return bad("Blocks", "has %d bytes; the path of a Unix socket's directory has at most %d", len(c.Blocks), kvport.MaxDir)
	}
	if err := c.Profile.Validate(); err != nil {
		return errors.Join(bad("Profile", "%w", err))
	}
	return nil
}

// layout returns the layout of the KV pool.
func (c Config) layout() kv.Layout {
	return kv.Layout{
		Blocks:      int(c.KVTokens) / c.BlockTokens,
		BlockTokens: c.BlockTokens,
		SlotBytes:   c.SlotBytes,
		Regions:     c.TensorParallel,
	}
}
