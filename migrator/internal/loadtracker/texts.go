package loadtracker

import (
	"sync"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// textBytesPerToken is how much text is remembered for each token of the KV cache: what a prompt
// has, with some room for prompts that peers compute.
const textBytesPerToken = 8

// Texts is a prefix.Texts that is safe for concurrent use: by it the steps of a prompt are found
// by its text.
type Texts struct {
	mu    sync.Mutex
	texts *prefix.Texts
}

// NewTexts returns an empty Texts for prompts as a KV cache of that size holds them; 0 stands for
// an unknown one.
func NewTexts(kv policies.Tokens) *Texts {
	if kv <= 0 {
		kv = defaultCapacity
	}
	return &Texts{texts: prefix.NewTexts(int(min(kv*textBytesPerToken/prefix.ChunkBytes, maxBlocks)))}
}

// Find returns the steps that are known of a prompt, about how many of its first tokens they
// and the text after them have, and about how many tokens the prompt has; 0 if little of it is known.
func (x *Texts) Find(t prefix.Text) (steps []prefix.Step, known, all policies.Tokens) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.texts.Find(nil, t)
}

// Learn records the ids of a prompt with that text, which extend root.
func (x *Texts) Learn(t prefix.Text, root prefix.Hash, ids []uint32) {
	steps := prefix.AppendSteps(nil, root, ids)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.texts.Learn(t, steps, policies.Tokens(len(ids)))
}

// Forget forgets all texts: the next engine may have another tokenizer.
func (x *Texts) Forget() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.texts.Clear()
}
