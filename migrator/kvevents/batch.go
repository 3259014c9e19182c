package kvevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/tinylib/msgp/msgp"

	"github.com/cascadeinfer/cascade/policies/prefix"
)

// A Decoder decodes the batches of KV events that engines publish: which blocks an engine
// has stored in its prefix cache and removed from it.
//
// A batch is a MessagePack array: a time stamp, the events, and the data-parallel rank. An
// event is a map from the names of its fields to their values, or an array
// of the values, in the order of the fields. Numbers may have any width, hashes
// are 64-bit numbers or 32 bytes, fields and events that are not known are skipped.
//
// A batch is decoded as a whole before any of its events can be applied, so a malformed one
// changes nothing.

// Decoder decodes one batch after the other and reuses its memory. Model and Rank are set before
// the first. It is not safe for concurrent use.
type Decoder struct {
	// Model is the name under which prompts of the engine's base model are hashed.
	Model string
	// Rank is the data-parallel rank whose batches are accepted.
	Rank uint64

	// Ignored counts blocks that are not part of a prefix by themselves (those of sliding windows
	// and of state-space models), and those that are on another machine.
	Ignored uint64

	events []event
	hashes []uint64 // of the blocks of events
	tokens []uint32
	extra  []uint64
	large  bool // the batch exceeds a limit
	store  prefix.Stored
}

// event is an event of a batch. Its hashes, tokens and extra are parts of the decoder's.
type event struct {
	kind                  kind
	hasParent             bool
	group                 uint8
	tier                  prefix.Tier
	hashes, tokens, extra part
	blockTokens           int
	parent                uint64
	root                  prefix.Hash
}

// part is a part of a slice, which may still grow.
type part struct{ from, to int }

// kind is what an event of a batch is.
type kind uint8

const (
	stored kind = iota
	removed
	cleared
)

var _ Index = (*prefix.Index)(nil)

// The errors of Decode, besides that of a batch that is malformed.
var (
	ErrRank  = errors.New("KV events of another data-parallel rank")
	ErrLarge = errors.New("KV events exceed the limit of 262,144 blocks or 8,388,608 tokens in a batch")
)

const (
	maxBlocks = 1 << 18
	maxTokens = 1 << 23
	// Memory for more than these is not kept for the next batch.
	keptBlocks = 1 << 14
	keptTokens = 1 << 19
)

// Decode decodes a batch, which Apply then applies. After an error Apply does nothing. Memory is
// allocated for what is in the payload, not for what it announces, and within the limits of a
// batch.
func (d *Decoder) Decode(payload []byte) error {
	d.reset()
	err := d.decode(payload)
	if err != nil {
		d.reset()
	}
	return err
}

// reset forgets the batch that was decoded last.
func (d *Decoder) reset() {
	d.events, d.hashes, d.extra = emptied(d.events, keptBlocks), emptied(d.hashes, keptBlocks), emptied(d.extra, keptBlocks)
	d.tokens, d.large = emptied(d.tokens, keptTokens), false
}

// emptied returns a slice without its elements, and without their memory if there is much of it.
func emptied[T any](s []T, kept int) []T {
	if cap(s) > kept {
		return nil
	}
	return s[:0]
}

func (d *Decoder) decode(payload []byte) error {
	r := reader{b: payload}
	fields := r.array()
	r.float()
	if fields < 2 {
		r.fail()
	}
	events := r.array()
	for i := range events {
		if err := d.decodeEvent(&r); err != nil {
			return fmt.Errorf("event %d: %w", i, err)
		}
	}
	rank := uint64(0)
	if fields > 2 && !r.isNil() {
		rank = r.uint()
	}
	for i := 3; i < fields; i++ {
		r.skip()
	}
	switch {
	case r.failed || len(r.b) > 0:
		return errors.New("KV events are malformed")
	case rank != d.Rank:
		return ErrRank
	}
	return nil
}

// Apply applies the events of the batch that was decoded last, in their order.
func (d *Decoder) Apply(x Index) {
	for i := range d.events {
		e := &d.events[i]
		hashes := d.hashes[e.hashes.from:e.hashes.to:e.hashes.to]
		switch e.kind {
		case stored:
			d.store = prefix.Stored{Hashes: hashes, Tokens: d.tokens[e.tokens.from:e.tokens.to:e.tokens.to], BlockTokens: e.blockTokens,
				HasParent: e.hasParent, Parent: e.parent, Root: e.root, Group: e.group, Tier: e.tier}
			if e.extra.to > e.extra.from {
				d.store.Extra = d.extra[e.extra.from:e.extra.to:e.extra.to]
			}
			x.Store(&d.store)
		case removed:
			x.Remove(prefix.Removed{Hashes: hashes, Group: e.group, Tier: e.tier})
		case cleared:
			x.Clear()
		}
	}
	d.store = prefix.Stored{}
}

// fields are the fields of an event while it is decoded. Its hashes and tokens are those of the
// decoder's from the marks on.
type fields struct {
	name                  []byte
	hasParent             bool
	parent                uint64
	blockTokens, group    uint64
	lora, salt, medium    []byte
	spec, locality        []byte
	extra                 reader // the field's value; no bytes if there is none
	hashesFrom, tokenFrom int
}

// The fields of events as arrays, in their order.
var (
	storedFields  = []string{"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality", "ownership"}
	removedFields = []string{"block_hashes", "medium", "group_idx", "locality", "ownership"}
)

func (d *Decoder) decodeEvent(r *reader) error {
	e := fields{hashesFrom: len(d.hashes), tokenFrom: len(d.tokens)}
	if r.next() == msgp.ArrayType {
		n := r.array()
		if n == 0 {
			r.fail()
		} else {
			e.name = r.bytes()
		}
		names := storedFields
		if string(e.name) == "BlockRemoved" {
			names = removedFields
		}
		for i := 1; i < n && !r.failed; i++ {
			if i <= len(names) {
				d.decodeField(r, &e, []byte(names[i-1]))
			} else {
				r.skip()
			}
		}
	} else {
		for n := r.mapping(); n > 0 && !r.failed; n-- {
			d.decodeField(r, &e, r.bytes())
		}
	}
	switch {
	case d.large:
		return ErrLarge
	case r.failed:
		return errors.New("KV events are malformed")
	}
	return d.addEvent(&e)
}

// decodeField decodes the value of one field.
func (d *Decoder) decodeField(r *reader, e *fields, name []byte) {
	switch string(name) {
	case "type":
		e.name = r.bytes()
	case "block_hashes":
		n := r.array()
		if n > maxBlocks-len(d.hashes) {
			d.large = true
			r.fail()
			return
		}
		d.hashes = slices.Grow(d.hashes, n)
		for ; n > 0 && !r.failed; n-- {
			d.hashes = append(d.hashes, decodeHash(r))
		}
	case "parent_block_hash":
		if e.hasParent = !r.isNil(); e.hasParent {
			e.parent = decodeHash(r)
		}
	case "token_ids":
		d.decodeTokens(r)
	case "block_size":
		e.blockTokens = r.uint()
	case "group_idx":
		if !r.isNil() {
			e.group = r.uint()
		}
	case "medium":
		e.medium = optional(r)
	case "lora_name":
		e.lora = optional(r)
	case "cache_salt": // some engines state it here, not in extra_keys
		e.salt = optional(r)
	case "kv_cache_spec_kind":
		e.spec = optional(r)
	case "locality":
		e.locality = optional(r)
	case "extra_keys":
		e.extra = reader{b: r.skip()}
	default:
		r.skip()
	}
}

// decodeTokens decodes token ids, of which an event may have thousands.
func (d *Decoder) decodeTokens(r *reader) {
	n := r.array()
	if n > maxTokens-len(d.tokens) {
		d.large = true
		r.fail()
		return
	}
	from := len(d.tokens)
	d.tokens = slices.Grow(d.tokens, n)[:from+n]
	out, b := d.tokens[from:], r.b
	for i := range out {
		switch { // the widths that vocabularies have, and the rest
		case len(b) >= 5 && b[0] == 0xcd:
			out[i], b = uint32(b[1])<<8|uint32(b[2]), b[3:]
		case len(b) >= 5 && b[0] == 0xce:
			out[i], b = binary.BigEndian.Uint32(b[1:5]), b[5:]
		default:
			r.b = b
			id := r.uint()
			if id > 1<<32-1 || r.failed {
				r.fail()
				return
			}
			out[i], b = uint32(id), r.b
		}
	}
	r.b = b
}

// optional reads a string or nil.
func optional(r *reader) []byte {
	if r.isNil() {
		return nil
	}
	return r.bytes()
}

// decodeHash reads a block's hash: a number, or 32 bytes, of which the number is the last 8.
func decodeHash(r *reader) uint64 {
	t := r.next()
	if t == msgp.StrType || t == msgp.BinType {
		b := r.bytes()
		if len(b) < 8 || len(b) > 64 {
			r.fail()
			return 0
		}
		return binary.BigEndian.Uint64(b[len(b)-8:])
	}
	if t == msgp.IntType { // some engines state them as signed numbers
		v, left, err := msgp.ReadInt64Bytes(r.b)
		if !r.advance(left, err) {
			return 0
		}
		return uint64(v)
	}
	return r.uint()
}

// addEvent adds a decoded event to the batch.
func (d *Decoder) addEvent(f *fields) error {
	ignored := string(f.locality) == "REMOTE" || f.group > prefix.MaxGroup
	e := event{
		hasParent: f.hasParent, group: uint8(f.group), tier: tierOf(f.medium), blockTokens: int(min(f.blockTokens, 1<<30)), parent: f.parent,
		hashes: part{f.hashesFrom, len(d.hashes)}, tokens: part{f.tokenFrom, len(d.tokens)},
	}
	some := len(d.hashes) > f.hashesFrom
	switch string(f.name) {
	case "AllBlocksCleared":
		e.kind, e.hashes.to = cleared, f.hashesFrom
		d.events = append(d.events, e)
	case "BlockRemoved":
		if ignored || !some {
			break
		}
		// Engines send an event for each block that they remove. Together they are applied faster.
		if n := len(d.events); n > 0 && d.events[n-1].kind == removed && d.events[n-1].group == e.group && d.events[n-1].tier == e.tier {
			d.events[n-1].hashes.to = e.hashes.to
			return nil
		}
		e.kind = removed
		d.events = append(d.events, e)
		return nil
	case "BlockStored":
		if ignored || !isPrefix(f.spec) {
			d.Ignored += uint64(len(d.hashes) - f.hashesFrom)
			break
		}
		if err := d.decodeExtra(&e, f); err != nil {
			return err
		}
		if !some {
			break
		}
		d.events = append(d.events, e)
		return nil
	}
	d.hashes, d.tokens = d.hashes[:f.hashesFrom], d.tokens[:f.tokenFrom]
	return nil
}

// isPrefix returns whether a block of that kind holds a prefix together with those before it.
// Blocks of other kinds are of no use without what is stored elsewhere.
func isPrefix(spec []byte) bool {
	switch string(spec) {
	case "", "full_attention", "mla_attention", "sink_full_attention":
		return true
	}
	return false
}

func tierOf(medium []byte) prefix.Tier {
	switch string(medium) {
	case "", "GPU":
		return prefix.GPU
	case "CPU", "CPU_PINNED":
		return prefix.CPU
	case "STORAGE", "DISK":
		return prefix.Storage
	}
	return prefix.OtherTier
}
