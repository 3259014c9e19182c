// Package api is what an engine and the migrator beside it say to each other: the frames of the Unix socket kv.sock, by
// which KV blocks get out of an engine and into it, whatever transport carries them between hosts.
//
// The engine listens on kv.sock, in a directory that only its own user can access. A frame is a length of four bytes (big
// endian) and a JSON object with one member, which names the frame:
//
//	migrator → engine                      engine → migrator
//	hello    who connects            ──►
//	                                 ◄──   welcome   the engine's memory for KV: handles and layout. The
//	                                                 descriptors of the handles come with the frame (SCM_RIGHTS)
//	                                 ◄──   offer     KV of a request, in blocks, for one reader
//	released the blocks are free again ──►
//	                                 ◄──   fetch     KV of a request is wanted in blocks
//	fetched  it is there, or not     ──►
//	call     of an engine with a table ──►
//	cancel   its answer is not needed ──►
//	                                 ◄──   answer    to the call
//
// An engine either keeps its own cache and copies blocks into staging memory, of which offer and fetch speak (vLLM with
// deploy/vllm/cascade_connector.py), or shows its cache and the table of its blocks, of which call speaks (the
// emulator): then its welcome has a table, and requests of it can migrate live.
//
// # Invariants
//
//  1. Part r of block b is in the memory of handle Regions[r].Handle, Bytes long from Offset + b·Stride on. No two parts
//     overlap, and every rank has one.
//  2. Every connection has a staging memory of its own: what a migrator of an earlier connection
//     writes late is in no cache.
//  3. The blocks of an offer are the migrator's from the offer until released, those of a fetch
//     from the fetch until fetched. The engine neither reads nor writes them meanwhile.
//  4. A migrator sends released once no reader that succeeds can read the blocks any more, and
//     fetched once nothing writes to them any more.
//  5. fetched without an error says that every block has the checksum of the offer, and that the
//     digests of offer and fetch are equal.
//  6. When a connection ends, for whatever reason, what its calls have reserved, pinned and frozen is released.
//  7. An engine has no unfinished writes to blocks that it has listed or offered: it synchronizes its CUDA stream first.
//
// An engine that keeps its own cache has one migrator: of two that connect, as in an upgrade, the one with the greater
// incarnation, and the other is closed. One with a table serves both until they leave. A member that a side does not know
// is ignored, so fields may be added; a frame that it does not know ends the connection.
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
	Version   = 2
	Socket    = "kv.sock"
	Connector = "CascadeConnector" // "kv_connector" in kv_transfer_params
	MaxFrame  = 16 << 20           // bytes of the JSON object; the ids of a million tokens take 5 MB
	MaxText   = 1 << 10            // bytes of an error
	MaxName   = 256                // bytes of a replica, a fingerprint, a leg or a reservation
)

// Bounds of members.
const (
	maxList = 1 << 17 // blocks of an offer or a fetch; their frame is shorter than MaxFrame
)

// Frame is one frame. One member is set.
type Frame struct {
	Hello    *Hello    `json:"hello,omitempty"`
	Welcome  *Welcome  `json:"welcome,omitempty"`
	Offer    *Offer    `json:"offer,omitempty"`
	Released *Released `json:"released,omitempty"`
	Fetch    *Fetch    `json:"fetch,omitempty"`
	Fetched  *Fetched  `json:"fetched,omitempty"`
	Call     *Call     `json:"call,omitempty"`
	Cancel   *Cancel   `json:"cancel,omitempty"`
	Answer   *Answer   `json:"answer,omitempty"`
}

// Hello is the first frame of a connection.
type Hello struct {
	Version     int    `json:"version"`
	Replica     string `json:"replica"`     // the engine's; it is named to other engines
	Incarnation uint64 `json:"incarnation"` // of the migrator: grows with every start
}

// Offer is KV that the engine hands over, block by block in the order of positions. The last block
// may be filled in part.
type Offer struct {
	Handle string   `json:"handle"` // 32 hexadecimal digits, random
	Digest string   `json:"digest"` // 64 hexadecimal digits: Digest of what the KV depends on
	Blocks []uint32 `json:"blocks,omitempty"`
	Sums   []uint32 `json:"sums,omitempty"` // crc32 (IEEE) of each part of each block
	// Error is why the KV is not there: then there are no blocks, and no released follows.
	Error string `json:"error,omitempty"`
}

// Released gives the blocks of an offer back.
type Released struct {
	Handle string `json:"handle"`
}

// Fetch wants the blocks of an offer of another engine, from block First on, in Blocks.
type Fetch struct {
	ID     uint64   `json:"id"`     // unique on the connection
	Holder string   `json:"holder"` // the other engine's replica
	Handle string   `json:"handle"`
	Digest string   `json:"digest"`
	First  int      `json:"first"`
	Blocks []uint32 `json:"blocks"`
}

// Fetched ends a Fetch.
type Fetched struct {
	ID    uint64 `json:"id"`
	Error string `json:"error,omitempty"` // why the blocks are not what was wanted; "" if they are
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
	}{{f.Hello != nil, "hello"}, {f.Welcome != nil, "welcome"}, {f.Offer != nil, "offer"}, {f.Released != nil, "released"}, {f.Fetch != nil, "fetch"}, {f.Fetched != nil, "fetched"},
		{f.Call != nil, "call"}, {f.Cancel != nil, "cancel"}, {f.Answer != nil, "answer"}} {
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
		return f.Welcome.validate()
	case f.Offer != nil:
		o := f.Offer
		if o.Error != "" {
			return errors.Join(checkHex("handle", o.Handle, HandleBytes), checkText(o.Error))
		}
		if len(o.Blocks) > 0 && len(o.Sums)%len(o.Blocks) != 0 || len(o.Sums) < len(o.Blocks) {
			return fmt.Errorf("%d checksums of %d blocks", len(o.Sums), len(o.Blocks))
		}
		return errors.Join(checkHex("handle", o.Handle, HandleBytes), checkHex("digest", o.Digest, DigestBytes), checkList(o.Blocks))
	case f.Released != nil:
		return checkHex("handle", f.Released.Handle, HandleBytes)
	case f.Fetch != nil:
		q := f.Fetch
		if q.First < 0 || q.First > maxList {
			return fmt.Errorf("first block %d", q.First)
		}
		return errors.Join(checkName("holder", q.Holder), checkHex("handle", q.Handle, HandleBytes), checkHex("digest", q.Digest, DigestBytes), checkList(q.Blocks))
	case f.Fetched != nil:
		return checkText(f.Fetched.Error)
	case f.Call != nil:
		return f.Call.validate()
	case f.Answer != nil:
		return checkText(f.Answer.Error)
	}
	return nil
}

func checkVersion(v int) error {
	if v != Version {
		return fmt.Errorf("version %d of the protocol, but this side has %d: upgrade the older one of migrator and engine", v, Version)
	}
	return nil
}

func checkName(what, s string) error {
	if s == "" || len(s) > MaxName {
		return fmt.Errorf("%s of %d bytes, must have 1 to %d", what, len(s), MaxName)
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

func checkList(blocks []uint32) error {
	if len(blocks) < 1 || len(blocks) > maxList {
		return fmt.Errorf("%d blocks, must be 1 to %d", len(blocks), maxList)
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

// headBytes is the size of the length before a frame.
const headBytes = 4

// readBody reads the rest of a frame after its head, and validates it.
func readBody(r io.Reader, head [headBytes]byte) (f Frame, err error) {
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
	var head [headBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Frame{}, err
	}
	return readBody(r, head)
}
