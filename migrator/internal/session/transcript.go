package session

import (
	"slices"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// transcript is what the client has of an answer: its token ids, how its text
// lies to them, and what the events of later legs must repeat of the first one's.
type transcript struct {
	ids    []uint32    // the prompt's, then those of the chunks written to the client
	prompt int         // how many of ids are the prompt's; 0 while unknown
	hash   prefix.Hash // of ids[:hashed]
	hashed int

	complete bool // every token so far came with its id
	aligned  bool // the client's text ends where ids end, as is known
	// mayBeAligned is true after a chunk with text and several tokens, the last of which
	// may have begun a character.
	mayBeAligned bool
	uncheckable  bool // whether it has cannot be found out
	textIDs      int  // how many ids there were at the last text
	textAligned  bool // that text ended with a character
	repeated     int  // tokens without text that the client has and that the present leg generates again

	finished  bool // the client has the finish reason
	usageSent bool // and the usage after it
	cached    int  // prompt tokens that the first leg found in a cache, −1 for unknown

	// Changed by steps of the pump only, which reads them between its steps.
	identity openai.Identity // of the first leg's events
	totals   openai.Usage    // over all legs
	edit     openai.Edit     // of the chunk that is written
}

func newTranscript(f policies.Features) transcript {
	return transcript{complete: !f.Has(policies.Choices | policies.Prompts | policies.Echo | policies.Unreadable), cached: -1}
}

// output returns how many tokens the client has.
func (t *transcript) output() int { return len(t.ids) - t.prompt }

// add takes a chunk of the present leg into the transcript; first says that it is
// the stream's first leg. It leaves in t.edit what to change of the chunk for a
// client that wants asked changed, and reports whether the client sees it. The
// error is for ids that cannot be read.
func (t *transcript) add(c *openai.Chunk, first bool, asked openai.Edit) (shown bool, err error) {
	if !first && c.Tokens == 0 && !c.Finish && !c.UsageOnly() && c.Failure() == nil {
		return false, nil // the opening of a later leg, or a comment in it
	}
	if first {
		if t.identity.ID == nil {
			t.identity = c.Identity()
		}
		if t.prompt == 0 && c.HasPromptIDs() {
			if t.ids, err = c.AppendPromptIDs(t.ids); err != nil {
				return false, err
			}
			t.prompt, t.textIDs, t.textAligned = len(t.ids), len(t.ids), true
		}
	}
	shown = true
	switch {
	case c.Tokens > 0:
		t.addHash() // of the ids before: the client need not wait for the prompt's hash
		if t.ids, err = c.AppendIDs(t.ids); err != nil {
			return false, err
		}
		// Text after one token ends where the token ends. After several, the last
		// token may have begun a character.
		t.mayBeAligned = c.HasText && c.Tokens > 1
		if t.aligned = c.HasText && c.Tokens == 1; c.HasText {
			t.textIDs, t.textAligned = len(t.ids), t.aligned
		}
		shown = t.repeated == 0 || c.HasText || c.Finish
		if t.repeated = max(t.repeated-c.Tokens, 0); c.HasText {
			t.repeated = 0
		}
	case c.HasText:
		t.aligned, t.mayBeAligned = true, false
		t.textIDs, t.textAligned = len(t.ids), true
		t.complete = t.complete && c.ListsIDs()
	}
	t.edit = asked
	if !first {
		t.totals = t.usage()
		t.edit.Identity, t.edit.HidePromptIDs, t.edit.Usage = &t.identity, true, &t.totals
	}
	t.finished, t.usageSent = t.finished || c.Finish, t.usageSent || c.UsageOnly()
	return shown, nil
}

// usage returns the counts of the whole answer so far.
func (t *transcript) usage() openai.Usage {
	return openai.Usage{Prompt: t.prompt, Output: t.output(), Cached: t.cached}
}

// addHash brings the hash up to the present ids.
func (t *transcript) addHash() {
	t.hash, t.hashed = t.hash.Extend(t.ids[t.hashed:]...), len(t.ids)
}

// takeBack removes the ids after the last text, so that another leg generates
// their text as a whole. The client has nothing of them unless it sees ids.
func (t *transcript) takeBack(hiddenIDs bool) {
	if t.aligned || !hiddenIDs || t.textIDs == len(t.ids) {
		return
	}
	t.repeated += len(t.ids) - t.textIDs
	t.aligned = t.textAligned
	t.ids = slices.Clip(t.ids[:t.textIDs])
	if t.hashed > t.textIDs {
		t.hash, t.hashed = 0, 0
	}
}

// pin fixes the fingerprint that later legs repeat.
func (t *transcript) pin(fingerprint []byte) {
	if t.identity.Fingerprint == nil {
		t.identity.Fingerprint = fingerprint
	}
}

// shared returns the present ids for readers outside the machine: what is appended
// later does not reach them.
func (t *transcript) shared() []uint32 { return t.ids[:len(t.ids):len(t.ids)] }
