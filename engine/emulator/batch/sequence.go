package batch

import (
	"encoding/binary"

	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cespare/xxhash/v2"
)

// Finish says whether and why a sequence has ended.
type Finish int

// Why a sequence ends.
const (
	Unfinished Finish = iota
	AtLength          // it reached MaxOutput
	AtStop            // EndOfText or one of StopTokens was sampled
)

// Request is what a client asks of the engine. It is fixed once submitted.
type Request struct {
	Prompt    []model.Token // at least one; copied
	MaxOutput int           // tokens to generate at most, ≥ 1
	MinOutput int           // tokens before the text may end by itself
	IgnoreEOS bool          // EndOfText is never sampled
	// StopTokens end the text when sampled, after MinOutput.
	StopTokens []model.Token
	Salt       uint64 // prefixes are shared only between requests of equal salt
	// Receiver gets the tokens. nil discards them.
	Receiver Receiver
}

// Receiver takes what a sequence generates.
type Receiver interface {
	// Receive takes one event of the receiver's own sequence. It is called on
	// the goroutine that drives the engine and must not block.
	Receive(Event)
}

// Event is one generated token.
type Event struct {
	Sequence *Sequence
	Token    model.Token
	Finish   Finish
	Cached   int // prompt tokens that were found in the prefix cache
}

// state says which list of the scheduler a sequence is on.
type state int

const (
	outside state = iota // not yet added, finished or aborted
	waiting
	running
)

// Sequence is a request in the engine. NewSequence makes it on any goroutine;
// after Scheduler.Add it belongs to the scheduler.
type Sequence struct {
	Request
	state     state
	ids       []model.Token // prompt and output
	computed  int           // positions whose KV bytes are in the pool
	blocks    []kv.Block    // that hold them, in order
	chain     []kv.Hash     // hashes of the full blocks of ids
	digest    model.Digest  // of positions [0, computed)
	cached    int           // prefix hit of the first admission
	admitted  bool          // has been running before
	blockSize int
}

// NewSequence prepares a request; it hashes the prompt, in blocks of
// blockTokens, so that the scheduler need not.
func NewSequence(r Request, blockTokens int) *Sequence {
	s := &Sequence{Request: r, blockSize: blockTokens}
	s.ids = append(make([]model.Token, 0, len(r.Prompt)+min(r.MaxOutput, reserve)), r.Prompt...)
	s.Prompt = s.ids[:len(r.Prompt)]
	s.hash()
	return s
}

// reserve is how many output tokens a new sequence has room for; longer
// outputs grow the slice.
const reserve = 256

// push appends a generated token.
func (s *Sequence) push(t model.Token) {
	s.ids = append(s.ids, t)
	s.Prompt = s.ids[:len(s.Prompt)] // one array, also after it has grown
}

// Output is how many tokens were generated.
func (s *Sequence) Output() int { return len(s.ids) - len(s.Prompt) }

// Length is the present length: prompt and output.
func (s *Sequence) Length() int { return len(s.ids) }

// hash extends the chain to all full blocks of ids.
func (s *Sequence) hash() {
	for n := len(s.chain); (n+1)*s.blockSize <= len(s.ids); n++ {
		parent := kv.Hash(s.Salt)
		if n > 0 {
			parent = s.chain[n-1]
		}
		s.chain = append(s.chain, hashBlock(parent, s.ids[n*s.blockSize:(n+1)*s.blockSize]))
	}
}

// hashBlock names a block by its tokens and everything before them.
func hashBlock(parent kv.Hash, ids []model.Token) kv.Hash {
	var buf [8 + 4*64]byte
	b := binary.LittleEndian.AppendUint64(buf[:0], uint64(parent))
	for _, t := range ids {
		b = binary.LittleEndian.AppendUint32(b, uint32(t))
	}
	h := kv.Hash(xxhash.Sum64(b))
	if h == 0 {
		h = 1 // 0 means "no hash"
	}
	return h
}

// finish says whether the token just appended ends the sequence.
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

// ending says whether the next token may be EndOfText.
func (s *Sequence) ending() model.Ending {
	if s.IgnoreEOS || s.Output() < s.MinOutput {
		return model.GoesOn
	}
	return model.MayEnd
}
