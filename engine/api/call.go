package api

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
)

// Op is what a Call asks an engine that shows the table of its blocks.
//
// A request is identified by its leg: the value of the HTTP header X-Cascade-Leg with which it was sent to the engine's
// HTTP API. Two running requests never have the same leg. Full blocks of a running request never change until they are
// freed. The engine increments a request's generation whenever it frees blocks of it (preemption); a migrator that has
// read blocks of an older generation starts over.
//
// A request adopts a reservation by kv_transfer_params.cascade_reservation of the HTTP API. It has stopped elsewhere, and
// its client waits: the engine should run it in its next step, before prompts.
type Op string

// The calls, with the fields that they have and those of their answers.
const (
	// Reserve reserves blocks for a request that will arrive: Reservation, Tokens → Blocks; or fails with Full. The same
	// name again returns the same blocks, and more if there are more tokens.
	Reserve Op = "reserve"
	// Fill reports that the first tokens of a reservation are in place and verified, and which tokens they are:
	// Reservation, From, IDs, Computed. It may be called repeatedly, each time for more tokens.
	Fill Op = "fill"
	// Release frees a reservation: Reservation. It ignores adopted and unknown ones.
	Release Op = "release"
	// Schedule returns what the engine expects of its next steps: → NextTokenUS.
	Schedule Op = "schedule"
	// List lists the blocks of a running request without stopping it: Leg, From → the table. For a request that waits
	// for its first token it fails with NotComputed.
	List Op = "list"
	// Freeze stops a request at the next step boundary and answers like List. The request keeps its blocks and
	// generates nothing until Thaw; tokens generated before still reach its HTTP response.
	Freeze Op = "freeze"
	// Thaw lets a frozen request continue as if it had not been frozen: Leg.
	Thaw Op = "thaw"
	// Drop ends a request without further output and frees its blocks: Leg. Its HTTP response ends without [DONE].
	Drop Op = "drop"
	// Pin finds the blocks in which the engine's prefix cache has the beginning of a prompt, and keeps them under the
	// name of a reservation: Reservation, Model, CacheSalt, IDs, Rest → Cached, Blocks. With Rest it also reserves free
	// blocks for the rest. It takes no block that a running request needs, but fails with Full. An engine without a
	// prefix cache answers Unsupported.
	Pin Op = "pin"
	// Commit reports that the blocks of a Pin with Rest have the KV of the first tokens, verified: Reservation, Tokens.
	// The engine stores the whole blocks among them in its prefix cache, and frees the reservation.
	Commit Op = "commit"
)

// Call is a question of the migrator.
type Call struct {
	ID          uint64 `json:"id"` // unique on the connection
	Op          Op     `json:"op"`
	Leg         string `json:"leg,omitempty"`
	Reservation string `json:"reservation,omitempty"` // chosen by the migrator, unique for the engine
	Tokens      uint64 `json:"tokens,omitempty"`
	From        uint64 `json:"from,omitempty"` // IDs begin at this position; of a table, what is before is known
	IDs         IDs    `json:"ids,omitempty"`
	Computed    uint64 `json:"computed,omitempty"` // positions [0, Computed) have their KV in the blocks
	Model       string `json:"model,omitempty"`    // as requests name it: the model's name or an adapter's
	CacheSalt   string `json:"cache_salt,omitempty"`
	Rest        bool   `json:"rest,omitempty"`
}

// Cancel says that the migrator does not wait for the answer of a call any more. If the call has not begun, it does not.
type Cancel struct {
	ID uint64 `json:"id"`
}

// Answer answers a Call. With a Code it has no other result.
type Answer struct {
	ID    uint64 `json:"id"`
	Code  Code   `json:"code,omitempty"`
	Error string `json:"error,omitempty"`

	// Blocks hold positions [FirstBlock·BlockTokens, Computed) of a table.
	Blocks      []uint32 `json:"blocks,omitempty"`
	FirstBlock  uint64   `json:"first_block,omitempty"`
	Generation  uint64   `json:"generation,omitempty"`
	Computed    uint64   `json:"computed,omitempty"` // positions [0, Computed) have their KV in the blocks
	Length      uint64   `json:"length,omitempty"`   // prompt and generated tokens
	IDs         IDs      `json:"ids,omitempty"`      // of positions [From, Length)
	Cached      uint64   `json:"cached,omitempty"`   // prompt tokens that were found in the prefix cache
	Prompt      uint64   `json:"prompt,omitempty"`   // how many positions are the prompt that this leg was given
	NextTokenUS uint64   `json:"next_token_us,omitempty"`
}

// Code is why a call failed.
type Code string

// The codes. Any other is like Invalid.
const (
	NotFound    Code = "not_found"    // the leg or reservation is unknown, or has ended
	Full        Code = "full"         // there are too few free blocks
	NotComputed Code = "not_computed" // the request waits for its first token
	InUse       Code = "in_use"       // the reservation is another's, or was adopted
	Unsupported Code = "unsupported"  // the engine has no such call, or no prefix cache
	Unavailable Code = "unavailable"  // the engine stops
	Invalid     Code = "invalid"      // the call contradicts itself or earlier ones
)

// Refusal is the error of a call that an engine has refused.
type Refusal struct {
	Code Code
	Text string
}

func (r *Refusal) Error() string { return r.Text }

// Refuse returns a Refusal.
func Refuse(c Code, format string, args ...any) error {
	return &Refusal{c, fmt.Sprintf(format, args...)}
}

func (c *Call) validate() error {
	for what, name := range map[string]string{"op": string(c.Op), "leg": c.Leg, "reservation": c.Reservation} {
		if len(name) > MaxName || what == "op" && name == "" {
			return checkName(what, name)
		}
	}
	return nil
}

// IDs are token ids. In JSON they are the base64 of their numbers in four bytes each, little endian: a list of
// numbers would take ten times as long to read.
type IDs []uint32

// MarshalText implements encoding.TextMarshaler.
func (ids IDs) MarshalText() ([]byte, error) {
	b := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	return base64.StdEncoding.AppendEncode(nil, b), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (ids *IDs) UnmarshalText(text []byte) error {
	b, err := base64.StdEncoding.AppendDecode(nil, text)
	if err != nil || len(b)%4 != 0 {
		return fmt.Errorf("ids: %d bytes of base64 are no numbers of four bytes: %w", len(text), err)
	}
	*ids = make(IDs, len(b)/4)
	for i := range *ids {
		(*ids)[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return nil
}
