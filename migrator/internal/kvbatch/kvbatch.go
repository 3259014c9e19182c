// Package kvbatch decodes the batches of KV events that vLLM publishes: which blocks an engine
// has stored in its prefix cache and removed from it.
//
// A batch is a MessagePack array: a time stamp, the events, and the data-parallel rank. An
// event is a map from the names of its fields to their values; before vLLM 0.12 it was an array
// of the values, in the order of the fields. Both are read. Numbers may have any width, hashes
// are unsigned 64-bit numbers or 32 bytes, fields and events that are not known are skipped.
//
// A batch is decoded as a whole before any of its events can be applied, so a malformed one
// changes nothing.
package kvbatch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cascadeinfer/cascade/policies/prefix"
)

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

	kinds  []kind
	stored []prefix.Stored
	gone   []prefix.Removed
	hashes []uint64
	tokens []uint32
	extra  []uint64
}

// kind is what an event of a batch is.
type kind uint8

const (
	stored kind = iota
	removed
	cleared
)

// Index is what events are applied to: a prefix.Index, or what guards one. The slices that the
// methods get are reused after they return.
type Index interface {
	Store(*prefix.Stored)
	Remove(prefix.Removed)
	Clear()
}

var _ Index = (*prefix.Index)(nil)

// The errors of Decode, besides that of a batch that is malformed.
var (
	ErrRank  = errors.New("KV events of another data-parallel rank")
	ErrLarge = errors.New("KV events exceed the limit of 262,144 blocks or 8,388,608 tokens in a batch")
)

const (
	maxBlocks = 1 << 18
	maxTokens = 1 << 23
)

// Decode decodes a batch, which Apply then applies. After an error Apply does nothing.
func (d *Decoder) Decode(payload []byte) error {
	d.kinds, d.stored, d.gone = d.kinds[:0], d.stored[:0], d.gone[:0]
	d.hashes, d.tokens, d.extra = d.hashes[:0], d.tokens[:0], d.extra[:0]
	err := d.decode(payload)
	if err != nil {
		d.kinds, d.stored, d.gone = d.kinds[:0], d.stored[:0], d.gone[:0]
	}
	return err
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
	s, g := 0, 0
	for _, k := range d.kinds {
		switch k {
		case stored:
			x.Store(&d.stored[s])
			s++
		case removed:
			x.Remove(d.gone[g])
			g++
		case cleared:
			x.Clear()
		}
	}
}

// event is an event while it is decoded. The slices of its values are parts of the decoder's,
// from the marks on.
type event struct {
	name                  []byte
	hasParent             bool
	parent                uint64
	blockTokens, group    uint64
	lora, medium          []byte
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
	e := event{hashesFrom: len(d.hashes), tokenFrom: len(d.tokens)}
	if c := r.next(); c&0xf0 == 0x90 || c == 0xdc || c == 0xdd {
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
	case r.failed:
		return errors.New("KV events are malformed")
	case len(d.hashes) > maxBlocks || len(d.tokens) > maxTokens:
		return ErrLarge
	}
	return d.addEvent(&e)
}

// decodeField decodes the value of one field.
func (d *Decoder) decodeField(r *reader, e *event, name []byte) {
	switch string(name) {
	case "type":
		e.name = r.bytes()
	case "block_hashes":
		for n := r.array(); n > 0 && !r.failed; n-- {
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
	if n > maxTokens {
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
	if c := r.next(); c >= 0xa0 && c <= 0xbf || c >= 0xc4 && c <= 0xc6 || c >= 0xd9 && c <= 0xdb {
		b := r.bytes()
		if len(b) < 8 || len(b) > 64 {
			r.fail()
			return 0
		}
		return binary.BigEndian.Uint64(b[len(b)-8:])
	}
	return r.uint()
}

// addEvent adds a decoded event to the batch.
func (d *Decoder) addEvent(e *event) error {
	hashes, tokens := d.hashes[e.hashesFrom:len(d.hashes):len(d.hashes)], d.tokens[e.tokenFrom:len(d.tokens):len(d.tokens)]
	ignored := string(e.locality) == "REMOTE" || e.group > prefix.MaxGroup
	switch string(e.name) {
	case "AllBlocksCleared":
		d.kinds = append(d.kinds, cleared)
	case "BlockRemoved":
		if ignored {
			break
		}
		tier := tierOf(e.medium)
		// Engines send an event for each block that they remove. Together they are applied faster.
		if n := len(d.gone); n > 0 && d.kinds[len(d.kinds)-1] == removed && d.gone[n-1].Group == uint8(e.group) && d.gone[n-1].Tier == tier {
			last := &d.gone[n-1]
			last.Hashes = d.hashes[e.hashesFrom-len(last.Hashes) : len(d.hashes)]
			return nil
		}
		d.kinds = append(d.kinds, removed)
		d.gone = append(d.gone, prefix.Removed{Hashes: hashes, Group: uint8(e.group), Tier: tier})
		return nil
	case "BlockStored":
		if ignored || !isPrefix(e.spec) {
			d.Ignored += uint64(len(hashes))
			break
		}
		s := prefix.Stored{Hashes: hashes, Tokens: tokens, BlockTokens: int(min(e.blockTokens, 1<<30)), HasParent: e.hasParent, Parent: e.parent, Group: uint8(e.group), Tier: tierOf(e.medium)}
		if err := d.decodeExtra(&s, e); err != nil {
			return err
		}
		d.kinds = append(d.kinds, stored)
		d.stored = append(d.stored, s)
		return nil
	}
	d.hashes, d.tokens = d.hashes[:e.hashesFrom], d.tokens[:e.tokenFrom]
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
	case "CPU":
		return prefix.CPU
	case "STORAGE":
		return prefix.Storage
	}
	return prefix.OtherTier
}
