package emulator

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	kvapi "github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/engine/internal/blocktable"
	"github.com/cascadeinfer/cascade/engine/internal/kvconnector"
)

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

// newSocketTransfer returns the connector of an engine with a KVSocket.
func newSocketTransfer(e *Engine) (*transfer, error) {
	c := e.cfg.KVSocket
	s, err := kvconnector.NewSocketServer(kvconnector.SocketConfig{
		Dir: c.Dir, Fingerprint: socketFingerprint(e.cfg), Slots: c.Slots, SlotBytes: e.cfg.layout().BlockBytes(), FetchTimeout: c.FetchTimeout, Logger: e.cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	return &transfer{engine: e, socket: s}, nil
}

// socketFingerprint names what engines must have in common to read each other's blocks. The number
// of blocks does not matter.
func socketFingerprint(c Config) string {
	return fmt.Sprintf("emulator %q block_tokens=%d slot_bytes=%d", c.Model, c.BlockTokens, c.SlotBytes)
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
	return kvapi.Digest(socketFingerprint(t.engine.cfg), hexadecimal(q.Adapter), hexadecimal(q.Salt), list)
}

// prepareHandle is prepare with a KVSocket.
func (t *transfer) prepareHandle(q *request, st *stream) {
	if q.transfer.HasHandle() {
		st.remote = &q.transfer
	}
	if _, connected := t.socket.Replica(); connected && q.transfer.RemoteDecode && !st.faults.NoTransferParams {
		b := make([]byte, kvapi.HandleBytes)
		rand.Read(b) // never fails
		st.handoffID = hex.EncodeToString(b)
	}
}

// grantHandle is grant with a KVSocket. The blocks are copied soon afterwards, and are freed then:
// the migrator has the lease.
func (t *transfer) grantHandle(st *stream) *kvconnector.Params {
	q := st.sequence
	replica, _ := t.socket.Replica()
	p := &kvconnector.Params{Handle: st.handoffID, Holder: replica, Tokens: q.Length() - 1 + st.faults.TransferTokens}
	var blocks []int
	for _, b := range q.Pinned() {
		blocks = append(blocks, int(b))
	}
	digest := t.digest(q, q.PinnedIDs())
	t.group.Go(func() error {
		var bytes []byte
		var err error
		if failed := t.engine.do(context.Background(), blocktable.Immediately, func(s *batch.Scheduler) {
			bytes, err = s.ReadBlocks(blocks)
			s.Unpin(q)
		}); failed != nil {
			return nil // the engine has stopped
		}
		if err == nil {
			err = t.socket.Offer(st.handoffID, digest, bytes)
		}
		if err != nil {
			t.engine.cfg.Logger.Warn("KV not handed over", "request", st.handoffID, "cause", err)
		}
		return nil
	})
	return p
}

// startFetch starts to load the blocks of a prompt by way of the migrator.
func (t *transfer) startFetch(ctx context.Context, st *stream, load batch.Load) {
	q, p := load.Sequence, st.remote
	ctx, cancel := context.WithCancel(ctx)
	st.stopPull = cancel
	digest := t.digest(q, q.Prompt)
	t.group.Go(func() error {
		defer cancel()
		var bytes []byte
		var err error
		if p.Tokens != q.Length() {
			err = fmt.Errorf("the KV of %d tokens for a prompt of %d", p.Tokens, q.Length())
		} else {
			bytes, err = t.socket.Fetch(ctx, kvconnector.Want{
				Holder: p.Holder, Handle: p.Handle, Digest: digest, First: load.First / t.engine.cfg.BlockTokens, Blocks: load.Blocks,
			})
		}
		if err != nil && ctx.Err() == nil {
			t.engine.cfg.Logger.Warn("KV load failed; the prompt is computed here", "handle", p.Handle, "holder", p.Holder, "cause", err)
		}
		t.endLoad(ctx, load, bytes, err)
		return nil
	})
}
