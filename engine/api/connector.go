// Package api holds the wire types between an engine and the migrator beside it: the calls of an engine that
// exposes its block table (engine.proto), and the frames of an engine with a CascadeConnector, which say
// how KV blocks get out of an engine that keeps its own cache, and into it.
// The connector of vLLM is deploy/vllm/cascade_connector.py; the emulator has one, too.
//
// The engine listens on the Unix socket kv.sock, in a directory that only its own user can access.
// Frames are a length of four bytes (big endian) and a JSON object with one member, which names the
// frame:
//
//	migrator → engine                      engine → migrator
//	hello    who connects            ──►
//	                                 ◄──   welcome   the layout of the staging memory, which comes
//	                                                 with the frame (SCM_RIGHTS), mappable by both
//	                                 ◄──   offer     KV of a request, copied into slots, for one reader
//	released the slots are free again ──►
//	                                 ◄──   fetch     KV of a request is wanted in slots
//	fetched  it is there, or not     ──►
//
// # Invariants
//
//  1. Every connection has a staging memory of its own: what a migrator of an earlier connection
//     writes late is in no cache.
//  2. The slots of an offer are the migrator's from the offer until released, those of a fetch
//     from the fetch until fetched. The engine neither reads nor writes them meanwhile.
//  3. A migrator sends released once no reader that succeeds can read the slots any more, and
//     fetched once nothing writes to them any more.
//  4. fetched without an error says that every slot has the checksum of the offer, and that the
//     digests of offer and fetch are equal.
//
// An engine has one migrator: of two that connect, as in an upgrade, the one with the greater
// incarnation, and the other is closed. A member that a side does not know is ignored, so fields
// may be added; a frame that it does not know ends the connection.
package api

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Constants of the protocol.
const (
	ConnectorVersion = 1
	ConnectorSocket  = "kv.sock"
	Connector        = "CascadeConnector" // "kv_connector" in kv_transfer_params
	MaxFrame         = 4 << 20            // bytes of the JSON object
	MaxText          = 1 << 10            // bytes of an error
)

// Bounds of members.
const (
	maxName   = 256     // bytes of a replica's or a fingerprint's name
	maxSlots  = 1 << 17 // slots of a request; their frame is shorter than MaxFrame
	maxMemory = 1 << 42 // bytes of a staging memory
)

// Frame is one frame. One member is set.
type Frame struct {
	Hello    *Hello    `json:"hello,omitempty"`
	Welcome  *Welcome  `json:"welcome,omitempty"`
	Offer    *Offer    `json:"offer,omitempty"`
	Released *Released `json:"released,omitempty"`
	Fetch    *Fetch    `json:"fetch,omitempty"`
	Fetched  *Fetched  `json:"fetched,omitempty"`
}

// Hello is the first frame of a connection.
type Hello struct {
	Version     int    `json:"version"`
	Replica     string `json:"replica"`     // the engine's; it is named to other engines
	Incarnation uint64 `json:"incarnation"` // of the migrator: grows with every start
}

// Welcome answers Hello. Slot s is at s·SlotBytes of the staging memory and holds one KV block.
type Welcome struct {
	Version int `json:"version"`
	// Fingerprint is equal for engines that compute equal bytes for a block.
	Fingerprint string `json:"fingerprint"`
	Slots       int    `json:"slots"`
	SlotBytes   int64  `json:"slot_bytes"`
}

// Offer is KV that the engine hands over, block by block in the order of positions. The last block
// may be filled in part.
type Offer struct {
	Handle string   `json:"handle"` // 32 hexadecimal digits, random
	Digest string   `json:"digest"` // 64 hexadecimal digits: Digest of what the KV depends on
	Slots  []uint32 `json:"slots,omitempty"`
	Sums   []uint32 `json:"sums,omitempty"` // crc32 (IEEE) of each slot
	// Error is why the KV is not there: then there are no slots, and no released follows.
	Error string `json:"error,omitempty"`
}

// Released gives the slots of an offer back.
type Released struct {
	Handle string `json:"handle"`
}

// Fetch wants the blocks of an offer of another engine, from block First on, in Slots.
type Fetch struct {
	ID     uint64   `json:"id"`     // unique on the connection
	Holder string   `json:"holder"` // the other engine's replica
	Handle string   `json:"handle"`
	Digest string   `json:"digest"`
	First  int      `json:"first"`
	Slots  []uint32 `json:"slots"`
}

// Fetched ends a Fetch.
type Fetched struct {
	ID    uint64 `json:"id"`
	Error string `json:"error,omitempty"` // why the slots are not what was wanted; "" if they are
}

// Name returns the name of the frame.
func (f Frame) Name() string {
	names := f.names()
	if len(names) != 1 {
		return ""
	}
	return names[0]
}

func (f Frame) names() (out []string) {
	for _, m := range [...]struct {
		set  bool
		name string
	}{{f.Hello != nil, "hello"}, {f.Welcome != nil, "welcome"}, {f.Offer != nil, "offer"}, {f.Released != nil, "released"}, {f.Fetch != nil, "fetch"}, {f.Fetched != nil, "fetched"}} {
		if m.set {
			out = append(out, m.name)
		}
	}
	return out
}

// Validate returns why a frame breaks the protocol, nil if it does not.
func (f Frame) Validate() error {
	if names := f.names(); len(names) != 1 {
		return fmt.Errorf("kv.sock: a frame with the members %q, want one that is known", names)
	}
	if err := f.validate(); err != nil {
		return fmt.Errorf("kv.sock: %s: %w", f.Name(), err)
	}
	return nil
}

func (f Frame) validate() error {
	switch {
	case f.Hello != nil:
		h := f.Hello
		return errors.Join(checkVersion(h.Version), checkName("replica", h.Replica))
	case f.Welcome != nil:
		w := f.Welcome
		if w.Slots < 1 || w.Slots > 1<<31 || w.SlotBytes < 1 || w.SlotBytes > maxMemory/int64(w.Slots) {
			return fmt.Errorf("%d slots of %d bytes", w.Slots, w.SlotBytes)
		}
		return errors.Join(checkVersion(w.Version), checkName("fingerprint", w.Fingerprint))
	case f.Offer != nil:
		o := f.Offer
		if o.Error != "" {
			return errors.Join(checkHex("handle", o.Handle, HandleBytes), checkText(o.Error))
		}
		if len(o.Sums) != len(o.Slots) {
			return fmt.Errorf("%d checksums of %d slots", len(o.Sums), len(o.Slots))
		}
		return errors.Join(checkHex("handle", o.Handle, HandleBytes), checkHex("digest", o.Digest, DigestBytes), checkSlots(o.Slots))
	case f.Released != nil:
		return checkHex("handle", f.Released.Handle, HandleBytes)
	case f.Fetch != nil:
		q := f.Fetch
		if q.First < 0 || q.First > maxSlots {
			return fmt.Errorf("first block %d", q.First)
		}
		return errors.Join(checkName("holder", q.Holder), checkHex("handle", q.Handle, HandleBytes), checkHex("digest", q.Digest, DigestBytes), checkSlots(q.Slots))
	default:
		return checkText(f.Fetched.Error)
	}
}

func checkVersion(v int) error {
	if v != ConnectorVersion {
		return fmt.Errorf("version %d of the protocol, but this side has %d: upgrade the older one of migrator and connector", v, ConnectorVersion)
	}
	return nil
}

func checkName(what, s string) error {
	if s == "" || len(s) > maxName {
		return fmt.Errorf("%s of %d bytes, must have 1 to %d", what, len(s), maxName)
	}
	return nil
}

func checkText(s string) error {
	if len(s) > MaxText {
		return fmt.Errorf("an error of %d bytes, more than %d", len(s), MaxText)
	}
	return nil
}

func checkHex(what, s string, size int) error {
	if _, err := hex.DecodeString(s); err != nil || len(s) != 2*size {
		return fmt.Errorf("%s %.80q: must be %d hexadecimal digits", what, s, 2*size)
	}
	return nil
}

func checkSlots(slots []uint32) error {
	if len(slots) < 1 || len(slots) > maxSlots {
		return fmt.Errorf("%d slots, must be 1 to %d", len(slots), maxSlots)
	}
	return nil
}

// Append appends a frame to dst. The error is that of Validate, or says that the frame is too long.
func (f Frame) Append(dst []byte) ([]byte, error) {
	if err := f.Validate(); err != nil {
		return dst, err
	}
	body, err := json.Marshal(f)
	if err == nil && len(body) > MaxFrame {
		err = fmt.Errorf("kv.sock: %s of %d bytes, more than %d", f.Name(), len(body), MaxFrame)
	}
	if err != nil {
		return dst, err
	}
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(body))), body...), nil
}

// HeadBytes is the size of the length before a frame.
const HeadBytes = 4

// ReadBody reads the rest of a frame after its head, and validates it.
func ReadBody(r io.Reader, head [HeadBytes]byte) (f Frame, err error) {
	n := binary.BigEndian.Uint32(head[:])
	if n > MaxFrame {
		return f, fmt.Errorf("kv.sock: a frame of %d bytes, more than %d", n, MaxFrame)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return f, err
	}
	if err := json.Unmarshal(body, &f); err != nil {
		return Frame{}, fmt.Errorf("kv.sock: %w", err)
	}
	return f, f.Validate()
}

// ReadFrame reads a frame.
func ReadFrame(r io.Reader) (Frame, error) {
	var head [HeadBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Frame{}, err
	}
	return ReadBody(r, head)
}
