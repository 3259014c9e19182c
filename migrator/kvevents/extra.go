package kvevents

import (
	"errors"
	"slices"

	"github.com/tinylib/msgp/msgp"

	"github.com/cascadeinfer/cascade/policies/prefix"
)

var errExtra = errors.New("KV events have malformed extra_keys")

// decodeExtra sets what the blocks of an event depend on besides their tokens: the root of
// those at the beginning of a prompt, and for each block a hash of the rest.
//
// Engines send for each block nil or an array: the name of the LoRA adapter, pairs of an
// image's identifier and its place, the cache salt (in the first block of a prompt only), and
// digests of prompt embeddings. The adapter and the salt belong to the root, so that a prompt
// whose ids are known can be looked up by them.
func (d *Decoder) decodeExtra(e *event, f *fields) error {
	salt := f.salt
	r := f.extra
	if len(r.b) > 0 && !r.isNil() {
		blocks := e.hashes.to - e.hashes.from
		if r.array() != blocks || r.failed {
			return errExtra
		}
		from, some := len(d.extra), uint64(0)
		d.extra = slices.Grow(d.extra, blocks)
		for i := range blocks {
			first := i == 0 && !e.hasParent
			hash, found := d.decodeBlockExtra(&r, f.lora, first)
			if found != nil {
				salt = found
			}
			d.extra = append(d.extra, hash)
			some |= hash
		}
		if r.failed {
			return errExtra
		}
		if some != 0 {
			e.extra = part{from, len(d.extra)}
		} else {
			d.extra = d.extra[:from]
		}
	}
	if !e.hasParent {
		e.root = prefix.Root(d.Model, string(f.lora), string(salt))
	}
	return nil
}

// decodeBlockExtra decodes the keys of one block. It returns the salt, if the block is the
// first one of a prompt and has one, and a hash of what is neither that nor the adapter, 0 for
// nothing.
func (d *Decoder) decodeBlockExtra(r *reader, lora []byte, first bool) (hash uint64, salt []byte) {
	if r.isNil() {
		return 0, nil
	}
	var h prefix.Hash
	for i := range r.array() {
		value := r.skip()
		if r.failed {
			return 0, nil
		}
		text := reader{b: value}
		isText := text.next() == msgp.StrType
		switch {
		case isText && i == 0 && len(lora) > 0 && string(text.bytes()) == string(lora):
		case isText && first && salt == nil:
			again := reader{b: value}
			salt = again.bytes()
		default:
			for _, b := range value {
				h = h.Extend(uint32(b))
			}
		}
	}
	return uint64(h), salt
}
