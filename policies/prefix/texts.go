package prefix

import (
	"encoding/binary"

	"github.com/cascadeinfer/cascade/policies"
)

// ChunkBytes is the distance between the places in a text that Texts knows.
const ChunkBytes = 1024

// Texts finds the steps of a prompt from its text, without a tokenizer: what it has learned of
// a prompt holds for every prompt whose text begins with the same bytes. It is bounded, and
// forgets the texts that were not asked for longest.
//
// The number of tokens of a text is exact only at the end of a learned prompt. Within it, Texts
// interpolates, and lowers the estimate when two prompts share the text but not the ids. So a step
// that Find returns may reach past the text that matched: use it to choose a replica, never to
// reuse KV.
//
// The zero value is not usable; call NewTexts. It is not safe for concurrent use.
type Texts struct {
	capacity int
	nodes    []node // 0 is the end of the order of use
	vacant   uint32 // the first of the vacant nodes, which are linked by their newer; 0 if none
	held     int
	byText   map[Hash]uint32
	path     []uint32 // the nodes of one call, reused
}

// node is a text, a multiple of ChunkBytes long.
type node struct {
	text         Hash
	step         Hash // of the ids up to tokens, in whole steps
	tokens       uint32
	newer, older uint32
}

// NewTexts returns an empty Texts for that many kibibytes of different text, at least one.
// Each takes about 70 bytes of memory.
func NewTexts(kib int) *Texts {
	return &Texts{capacity: min(max(kib, 1), 1<<24), nodes: make([]node, 1), byText: make(map[Hash]uint32)}
}

// Len returns how many kibibytes of different text are known.
func (x *Texts) Len() int { return x.held }

// hashChunk extends the hash of a text by its next chunk.
func hashChunk(h Hash, chunk []byte) Hash {
	x := uint64(h)
	for len(chunk) >= 8 {
		x = (x ^ binary.LittleEndian.Uint64(chunk)) * 0x9e3779b97f4a7c15
		x ^= x >> 29
		chunk = chunk[8:]
	}
	return Hash((x ^ x>>32) * 0xd6e8feb86659fd93)
}

// Text is the text of a prompt as Texts knows it: hashes, which are much shorter. The zero value
// is an empty one.
type Text struct {
	chunks []Hash // of the text up to the end of each chunk
	bytes  int
}

// NewText returns the Text of a prompt whose ids extend root.
func NewText(root Hash, text []byte) Text {
	t := Text{chunks: make([]Hash, 0, len(text)/ChunkBytes), bytes: len(text)}
	for ; len(text) >= ChunkBytes; text = text[ChunkBytes:] {
		root = hashChunk(root, text[:ChunkBytes])
		t.chunks = append(t.chunks, root)
	}
	return t
}

// Len returns how many chunks of the text can be known.
func (t Text) Len() int { return len(t.chunks) }

// walk sets path to the known nodes of a text, from its beginning.
func (x *Texts) walk(t Text) {
	x.path = x.path[:0]
	for _, h := range t.chunks {
		n := x.byText[h]
		if n == 0 {
			break
		}
		x.path = append(x.path, n)
	}
}

// Find appends the steps that are known of a prompt with that text to dst. It returns also
// about how many tokens the known part of its text has, which may be more than the last step,
// and about how many the whole text has, if at least half of it is known, else 0.
func (x *Texts) Find(dst []Step, text Text) (steps []Step, tokens, all policies.Tokens) {
	x.walk(text)
	last := policies.Tokens(0)
	for _, n := range x.path {
		e := &x.nodes[n]
		tokens = max(tokens, policies.Tokens(e.tokens))
		if depth := policies.Tokens(e.tokens) / StepTokens * StepTokens; depth > last {
			dst, last = append(dst, Step{Tokens: depth, Hash: e.step}), depth
		}
	}
	x.touch()
	if known := len(x.path) * ChunkBytes; known > 0 && 2*known >= text.bytes {
		all = tokens * policies.Tokens(text.bytes) / policies.Tokens(known)
	}
	return dst, tokens, all
}

// Learn records the ids of a prompt with that text. The steps are those of the ids
// (AppendSteps), and tokens is how many there are.
func (x *Texts) Learn(text Text, steps []Step, tokens policies.Tokens) {
	x.walk(text)
	known := uint32(0) // tokens up to the end of the path
	for _, n := range x.path {
		e := &x.nodes[n]
		if e.tokens = agreeing(e, steps, tokens); e.tokens < known {
			e.tokens = known // more text has no fewer tokens
		}
		known = e.tokens
		e.step = stepAt(steps, e.tokens)
	}
	x.touch()
	begin := len(x.path) * ChunkBytes
	left := max(int64(min(tokens, maxDepth))-int64(known), 0)
	for i, h := range text.chunks[len(x.path):] {
		depth := known + uint32(left*int64(i+1)*ChunkBytes/int64(text.bytes-begin))
		if !x.add(node{text: h, step: stepAt(steps, depth), tokens: depth}) {
			break
		}
	}
}

// agreeing returns the number of tokens of a node, lowered if a prompt that begins with its text
// contradicts it: because it is shorter, or because its ids differ.
func agreeing(e *node, steps []Step, tokens policies.Tokens) uint32 {
	n := uint32(min(policies.Tokens(e.tokens), tokens))
	whole := e.tokens / uint32(StepTokens)
	switch {
	case n < e.tokens, whole == 0:
		return n
	case stepAt(steps, e.tokens) == e.step:
		return e.tokens
	}
	return whole*uint32(StepTokens) - 1
}

// stepAt returns the hash of the last step that ends at n tokens or before, 0 if there is none.
func stepAt(steps []Step, n uint32) Hash {
	if i := min(int(n/uint32(StepTokens)), len(steps)); i > 0 {
		return steps[i-1].Hash
	}
	return 0
}

// Clear forgets everything.
func (x *Texts) Clear() { *x = *NewTexts(x.capacity) }

// touch makes the nodes of the path the most recently used, the first one last.
func (x *Texts) touch() {
	after := uint32(0)
	for _, n := range x.path {
		x.unlink(n)
		x.link(n, after)
		after = n
	}
}

// add appends a node to the path. It returns false if there is no room but that of the path.
func (x *Texts) add(e node) bool {
	after := uint32(0)
	if len(x.path) > 0 {
		after = x.path[len(x.path)-1]
	}
	if x.held == x.capacity {
		oldest := x.nodes[0].newer
		if oldest == after {
			return false
		}
		x.unlink(oldest)
		delete(x.byText, x.nodes[oldest].text)
		x.nodes[oldest].newer, x.vacant = x.vacant, oldest
		x.held--
	}
	n := x.vacant
	if n != 0 {
		x.vacant = x.nodes[n].newer
	} else {
		n = uint32(len(x.nodes))
		x.nodes = append(x.nodes, node{})
	}
	x.nodes[n] = e
	x.byText[e.text] = n
	x.held++
	x.link(n, after)
	x.path = append(x.path, n)
	return true
}

// link makes a node the next older one of another, or the newest if that is 0.
func (x *Texts) link(n, after uint32) {
	e, a := &x.nodes[n], &x.nodes[after]
	e.newer, e.older = after, a.older
	x.nodes[a.older].newer = n
	a.older = n
}

// unlink takes a node out of the order of use.
func (x *Texts) unlink(n uint32) {
	e := &x.nodes[n]
	x.nodes[e.newer].older = e.older
	x.nodes[e.older].newer = e.newer
}
