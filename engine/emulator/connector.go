package emulator

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	kvapi "github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/engine/internal/blocktable"
	"github.com/cascadeinfer/cascade/engine/internal/kvport"
)

// KVConnector carries KV blocks to other engines and from them. The one of Config.KVSocket lets a migrator do so.
// Its methods but Run may be called concurrently.
type KVConnector interface {
	// Run works until ctx ends.
	Run(ctx context.Context) error
	// Replica returns the name by which other engines fetch offers of this one, or false while they cannot.
	Replica() (string, bool)
	// Offer hands KV over: blocks are its bytes, one block after the other, and are not kept.
	Offer(handle, digest string, blocks []byte) error
	// Fetch returns the bytes of the blocks of another engine's offer, one after the other. It verifies the digest.
	Fetch(ctx context.Context, w KVWant) ([]byte, error)
}

// KVWant names KV of another engine: the blocks of an offer from First on.
type KVWant = kvport.Want

// KVSocket configures a CascadeConnector. The engine computes what does not arrive.
type KVSocket struct {
	// Dir is the directory of kv.sock. It is created, for this user only, if it does not exist.
	Dir string
	// Slots is the number of blocks that fit into the staging memory. 0 means as many as the KV
	// cache has.
	Slots int
	// FetchTimeout bounds how long a prompt waits for its KV. 0 means 12 s.
	FetchTimeout time.Duration
}

func (c KVSocket) withDefaults(blocks int) KVSocket {
	c.Slots = cmp.Or(c.Slots, blocks)
	c.FetchTimeout = cmp.Or(c.FetchTimeout, 12*time.Second)
	return c
}

// transfer hands the KV of requests over by an engine's connector. Every method does nothing on nil.
type transfer struct {
	engine    *Engine
	connector KVConnector
	group     *errgroup.Group // of Run
}

// newTransfer returns what hands an engine's KV over, nil if it has no connector.
func newTransfer(e *Engine) (*transfer, error) {
	if e.cfg.KVConnector != nil {
		return &transfer{engine: e, connector: e.cfg.KVConnector}, nil
	}
	c := e.cfg.KVSocket
	if c == nil {
		return nil, nil
	}
	s, err := kvport.New(kvport.Config{
		Dir: c.Dir, Fingerprint: kvFingerprint(e.cfg), Slots: c.Slots, SlotBytes: e.cfg.layout().BlockBytes(), FetchTimeout: c.FetchTimeout, Logger: e.cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	return &transfer{engine: e, connector: s}, nil
}

// kvFingerprint names what engines must have in common to read each other's blocks. The number
// of blocks does not matter.
func kvFingerprint(c Config) string {
	return fmt.Sprintf("emulator %q block_tokens=%d slot_bytes=%d ranks=%d", c.Model, c.BlockTokens, c.SlotBytes, c.TensorParallel)
}

// digest returns the digest of the first ids of a sequence.
func (t *transfer) digest(q *batch.Sequence, ids []model.Token) string {
	hexadecimal := func(n uint64) string {
		if n == 0 {
			return ""
		}
		return strconv.FormatUint(n, 16)
	}
	list := make([]uint32, len(ids))
	for i, id := range ids {
		list[i] = uint32(id)
	}
	return kvapi.Digest(kvFingerprint(t.engine.cfg), hexadecimal(q.Adapter), hexadecimal(q.Salt), list)
}

// prepare sets what a request's kv_transfer_params mean for its stream.
func (t *transfer) prepare(q *request, st *stream) {
	if t == nil {
		return
	}
	if q.transfer.HasHandle() {
		st.remote = &q.transfer
	}
	if _, connected := t.connector.Replica(); connected && q.transfer.RemoteDecode && !st.faults.NoTransferParams {
		b := make([]byte, kvapi.HandleBytes)
		rand.Read(b) // never fails
		st.handoffID = hex.EncodeToString(b)
	}
}

// grant offers the blocks of a stream that ends, and describes the offer. They are copied soon afterwards, and are freed
// then: the connector has the lease. It runs on the loop.
func (t *transfer) grant(st *stream) *kvport.Params {
	q := st.sequence
	replica, _ := t.connector.Replica()
	p := &kvport.Params{Handle: st.handoffID, Holder: replica, Tokens: q.Length() - 1 + st.faults.TransferTokens}
	blocks, digest := q.Pinned(), t.digest(q, q.PinnedIDs())
	t.group.Go(func() error {
		var bytes []byte
		var err error
		if failed := t.engine.do(context.Background(), blocktable.Immediately, func(s *batch.Scheduler) {
			bytes, err = s.Pool.Read(blocks)
			s.Unpin(q)
		}); failed != nil {
			return nil // the engine has stopped
		}
		if err == nil {
			err = t.connector.Offer(st.handoffID, digest, bytes)
		}
		if err != nil {
			t.engine.cfg.Logger.Warn("KV not handed over", "request", st.handoffID, "cause", err)
		}
		return nil
	})
	return p
}

// startLoads starts to fetch the blocks of the prompts of a step. It runs on the loop.
func (t *transfer) startLoads(ctx context.Context, loads []batch.Load) {
	for _, load := range loads {
		st := load.Sequence.Receiver.(*stream)
		ctx, cancel := context.WithCancel(ctx)
		st.stopPull = cancel
		digest := t.digest(load.Sequence, load.Sequence.Prompt)
		t.group.Go(func() error {
			defer cancel()
			t.load(ctx, st.remote, digest, load)
			return nil
		})
	}
}

// load fetches the blocks of a prompt, and ends the load with their bytes unless that failed.
func (t *transfer) load(ctx context.Context, p *kvport.Params, digest string, load batch.Load) {
	var loaded *batch.Loaded
	bytes, err := []byte(nil), fmt.Errorf("the KV of %d tokens for a prompt of %d", p.Tokens, load.Sequence.Length())
	if p.Tokens == load.Sequence.Length() {
		bytes, err = t.connector.Fetch(ctx, KVWant{
			Holder: p.Holder, Handle: p.Handle, Digest: digest, First: load.First / t.engine.cfg.BlockTokens, Blocks: load.Blocks,
		})
	}
	if err == nil {
		loaded = load.Read(bytes, t.engine.cfg.layout().SlotBytes)
	} else if ctx.Err() == nil {
		t.engine.cfg.Logger.Warn("KV load failed; the prompt is computed here", "handle", p.Handle, "holder", p.Holder, "cause", err)
	}
	// The load ends also if the client is gone; if the engine is, so are its blocks.
	_ = t.engine.do(context.WithoutCancel(ctx), blocktable.Immediately, func(s *batch.Scheduler) { s.EndLoad(load, loaded) })
}
