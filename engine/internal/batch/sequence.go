package batch

import (
	"encoding/binary"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
)

// Finish is whether and why a sequence has ended.
type Finish int

// Why a sequence ends.
const (
	Unfinished Finish = iota
	AtLength          // MaxOutput was reached
	AtStop            // EndOfText or one of StopTokens was sampled
	Dropped           // by Scheduler.Drop; the event has no token
)

// Request is a client's request. It must not change once submitted.
type Request struct {
	Prompt    []model.Token // at least one, copied; none for Scheduler.Adopt
	MaxOutput int           // maximum number of generated tokens, ≥ 1
	MinOutput int           // number of tokens before the text may end by itself
	IgnoreEOS bool          // EndOfText is never sampled
	// StopTokens end the text when sampled, after MinOutput.
	StopTokens []model.Token
	Salt       uint64 // requests share prefixes only if their salts are equal
	// Adapter seeds the KV bytes of every position, and so the text; 0 is the base model.
	// Requests of different adapters need different salts.
	Adapter uint64
	// Origin is what Salt and Adapter stand for, for a CacheObserver.
	Origin Origin
	// Load makes the sequence wait for KV bytes that another engine computed (Step.Loads).
	Load bool
	// Pin keeps the blocks of a sequence that ends at MaxOutput, until Unpin.
	Pin bool
	// Receiver receives the tokens. nil discards them.
	Receiver Receiver
}

// Origin is what separates a request's prefixes from those of others, by name.
type Origin struct {
	Salt      string // "": none
	Adapter   string // "": the base model
	AdapterID int    // from 1 on; 0: the base model
}

// Receiver receives what a sequence generates.
type Receiver interface {
	// Receive receives one event of its own sequence. It is called on the goroutine that
	// drives the engine and must not block.
	Receive(Event)
}

// Flusher is a Receiver that may keep tokens for a later one.
type Flusher interface {
	// Flush is called when the sequence is frozen, like Receive: all tokens that were received
	// must reach their reader, because no later one may come.
	Flush()
}

// Event is one generated token.
type Event struct {
	Sequence *Sequence
	Token    model.Token
	Finish   Finish
	Cached   int // prompt tokens that were found in the prefix cache
}

// state is the list of the scheduler that a sequence is on.
type state int

const (
	fresh state = iota // not yet added
	waiting
	running
	frozen
	loading // a Load fills its blocks
	ended   // finished, aborted or dropped
)

// Sequence is a request in the engine. NewSequence may be called on any goroutine; after
// Scheduler.Add the sequence belongs to the scheduler.
type Sequence struct {
	Request
	state      state
	ids        []model.Token // prompt and output; only ever appended to; nil without content
	length     int           // prompt and output tokens
	prompt     int           // prompt tokens
	computed   int           // positions whose KV bytes are in the pool
	blocks     []kv.Block    // that hold them, in order
	chain      []kv.Hash     // hashes of the full blocks of ids, without the salt
	registered int           // full blocks that were offered to the prefix cache
	digest     model.Digest  // of the adapter and positions [0, computed)
	cached     int           // prefix hit of the first admission
	local      int           // prompt tokens that were found and not computed again
	external   int           // prompt tokens that a Load or an adoption brought
	pinned     []kv.Block    // kept after the end
	admitted   bool          // has been running
	adopted    bool          // its first blocks were filled elsewhere
	blockSize  int

	order      uint64 // of the last admission
	generation uint64 // incremented when its blocks are freed
	settled    extent // as of the last Settle
	owner      uint64 // who froze it
}

// extent is the progress of a sequence.
type extent struct{ length, computed int }

// NewSequence prepares a request. It hashes the prompt in blocks of blockTokens, off the
// scheduler's goroutine.
func NewSequence(r Request, blockTokens int) *Sequence {
	s := &Sequence{Request: r, blockSize: blockTokens, digest: model.Digest(r.Adapter)}
	s.ids = append(make([]model.Token, 0, len(r.Prompt)+min(r.MaxOutput, reserve)), r.Prompt...)
	s.Prompt = s.ids[:len(r.Prompt)]
	s.prompt, s.length = len(s.ids), len(s.ids)
	s.settled.length = s.length
	s.hash()
	return s
}

// NewLength prepares a request of a Scheduler without a Model: it has a prompt of so many tokens,
// at least one, and generates MaxOutput tokens. chain are the hashes of the leading full blocks of
// the prompt that other requests may share, below 1<<63, and may be shorter than the prompt.
func NewLength(r Request, prompt int, chain []kv.Hash) *Sequence {
	r.Prompt = nil
	s := &Sequence{Request: r, length: prompt, prompt: prompt, chain: slices.Clip(chain)}
	s.settled.length = prompt
	return s
}

// reserve is the number of output tokens for which a new sequence allocates; longer outputs grow the
// slice.
const reserve = 256

// push appends a generated token.
func (s *Sequence) push(t model.Token) {
	s.ids = append(s.ids, t)
	s.Prompt = s.ids[:len(s.Prompt)] // one array, also after it has grown
	s.length++
}

// Output returns the number of generated tokens.
func (s *Sequence) Output() int { return s.length - s.prompt }

// Length returns the number of prompt and output tokens.
func (s *Sequence) Length() int { return s.length }

// Computed returns for how many tokens the KV is in the pool.
func (s *Sequence) Computed() int { return s.computed }

// Runs reports whether the sequence is in the batch, and Ended whether it has left it for good.
func (s *Sequence) Runs() bool  { return s.state == running }
func (s *Sequence) Ended() bool { return s.state == ended }

// IDs returns the ids at positions [from, to); nil without content. The slice must not be changed.
func (s *Sequence) IDs(from, to int) []model.Token {
	if s.ids == nil {
		return nil
	}
	return s.ids[from:to:to]
}

// isPrompt reports whether a sequence has more to compute than its last token.
func (s *Sequence) isPrompt() bool { return s.length-s.computed > 1 }

// hash extends the chain to all full blocks of ids.
func (s *Sequence) hash() { s.chain = extend(s.chain, s.ids, s.blockSize) }

// extend adds the hashes of the full blocks of ids that a chain lacks.
func extend(chain []kv.Hash, ids []model.Token, size int) []kv.Hash {
	for n := len(chain); (n+1)*size <= len(ids); n++ {
		parent := kv.Hash(0)
		if n > 0 {
			parent = chain[n-1]
		}
		chain = append(chain, hashBlock(parent, ids[n*size:(n+1)*size]))
	}
	return chain
}

// BlockHash returns the prefix cache's hash of the n-th full block, which must be known. The salt is
// applied here and not in the chain, which may be older than the request: ids of an adopted sequence
// are known before its salt.
func (s *Sequence) BlockHash(n int) kv.Hash {
	if s.Salt == 0 {
		return s.chain[n]
	}
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], uint64(s.chain[n]))
	binary.LittleEndian.PutUint64(b[8:], s.Salt)
	return nonzero(xxhash.Sum64(b[:]))
}

// hashBlock hashes a block's tokens and everything before them.
func hashBlock(parent kv.Hash, ids []model.Token) kv.Hash {
	var buf [8 + 4*64]byte
	b := binary.LittleEndian.AppendUint64(buf[:0], uint64(parent))
	for _, t := range ids {
		b = binary.LittleEndian.AppendUint32(b, uint32(t))
	}
	return nonzero(xxhash.Sum64(b))
}

// nonzero maps 0, which means "no hash", to another hash.
func nonzero(x uint64) kv.Hash { return kv.Hash(max(x, 1)) }

// finish returns whether the token just appended ends the sequence.
func (s *Sequence) finish(t model.Token) Finish {
	if s.Output() > s.MinOutput {
		if t == model.EndOfText && !s.IgnoreEOS {
			return AtStop
		}
		for _, stop := range s.StopTokens {
			if t == stop {
				return AtStop
			}
		}
	}
	if s.Output() >= s.MaxOutput {
		return AtLength
	}
	return Unfinished
}

// ending returns whether the next token may be EndOfText.
func (s *Sequence) ending() model.Ending {
	if s.IgnoreEOS || s.Output() < s.MinOutput {
		return model.GoesOn
	}
	return model.MayEnd
}
