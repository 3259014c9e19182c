package kvpublisher

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
)

// Batch collects the events of one engine step, encoded. The zero value is empty.
type Batch struct {
	events int
	b      []byte
}

// Stored describes consecutive blocks of one sequence that have become findable.
type Stored struct {
	Hashes      []kv.Hash
	Parent      kv.Hash // of the block before; 0: there is none
	IDs         []model.Token
	BlockTokens int
	batch.Origin
}

// Fixed values: an engine without a KV connector that stores blocks elsewhere, and with one group of layers.
const (
	medium = "GPU" // on CPUs, too
	group  = 0
	spec   = "full_attention"
)

// Len returns the number of events.
func (b *Batch) Len() int { return b.events }

// AddStored adds a BlockStored event.
func (b *Batch) AddStored(s Stored) {
	b.add("BlockStored", 11)
	b.hashes(s.Hashes...)
	b.text("parent_block_hash")
	if s.Parent == 0 {
		b.null()
	} else {
		b.uint(uint64(s.Parent))
	}
	b.text("token_ids")
	b.array(len(s.IDs))
	for _, id := range s.IDs {
		b.uint(uint64(id))
	}
	b.text("block_size")
	b.uint(uint64(s.BlockTokens))
	b.text("lora_id")
	if s.Adapter == "" {
		b.null()
	} else {
		b.uint(uint64(s.AdapterID))
	}
	b.medium()
	b.text("lora_name")
	if s.Adapter == "" {
		b.null()
	} else {
		b.text(s.Adapter)
	}
	b.text("extra_keys")
	b.array(len(s.Hashes))
	for i := range s.Hashes {
		b.extraKeys(s, i == 0 && s.Parent == 0)
	}
	b.group()
	b.text("kv_cache_spec_kind")
	b.text(spec)
}

// extraKeys encodes what besides ids is in a block's hash. Only the first block of a prompt has the salt.
func (b *Batch) extraKeys(s Stored, first bool) {
	var keys []string
	if s.Adapter != "" {
		keys = append(keys, s.Adapter)
	}
	if s.Salt != "" && first {
		keys = append(keys, s.Salt)
	}
	if len(keys) == 0 {
		b.null()
		return
	}
	b.array(len(keys))
	for _, k := range keys {
		b.text(k)
	}
}

// AddRemoved adds a BlockRemoved event.
func (b *Batch) AddRemoved(h kv.Hash) {
	b.add("BlockRemoved", 4)
	b.hashes(h)
	b.medium()
	b.group()
}

// AddCleared adds an AllBlocksCleared event.
func (b *Batch) AddCleared() { b.add("AllBlocksCleared", 1) }

// Take returns the payload of a message with all events, which happened at a Unix time in seconds, and
// empties the batch.
func (b *Batch) Take(seconds float64) []byte {
	head := Batch{b: make([]byte, 0, 16+len(b.b))}
	head.array(3)
	head.b = msgp.AppendFloat64(head.b, seconds)
	head.array(b.events)
	head.b = append(head.b, b.b...)
	head.uint(0) // data_parallel_rank
	b.events, b.b = 0, b.b[:0]
	return head.b
}

// add begins an event with so many fields, the first of which is its type.
func (b *Batch) add(kind string, fields int) {
	b.events++
	b.b = msgp.AppendMapHeader(b.b, uint32(fields))
	b.text("type")
	b.text(kind)
}

func (b *Batch) hashes(hashes ...kv.Hash) {
	b.text("block_hashes")
	b.array(len(hashes))
	for _, h := range hashes {
		b.uint(uint64(h))
	}
}

func (b *Batch) medium() {
	b.text("medium")
	b.text(medium)
}

func (b *Batch) group() {
	b.text("group_idx")
	b.uint(group)
}

// The values are in MessagePack's shortest forms.

func (b *Batch) null() { b.b = msgp.AppendNil(b.b) }

func (b *Batch) uint(x uint64) { b.b = msgp.AppendUint64(b.b, x) }

func (b *Batch) text(s string) { b.b = msgp.AppendString(b.b, s) }

func (b *Batch) array(n int) { b.b = msgp.AppendArrayHeader(b.b, uint32(n)) }
