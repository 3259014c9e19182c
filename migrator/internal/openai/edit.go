package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"

	"github.com/tidwall/gjson"
)

// Edit says what to change about an event before the client gets it.
type Edit struct {
	// HideIDs and HideUsage remove what only the front end asked for. The fields
	// stay, with the value null, as the engine sends them to a client that did
	// not ask.
	HideIDs, HideUsage bool
	// HidePromptIDs removes the prompt's token ids only.
	HidePromptIDs bool
	// Identity replaces the values of id, created, model and system_fingerprint
	// with those that it has; nil keeps them.
	Identity *Identity
	// Usage replaces the counts of the usage; nil keeps them. A negative Cached
	// makes that count null: it is unknown. So do the prompt's other details,
	// which are those of the leg that sent the event.
	Usage *Usage
	// Fingerprint is added as system_fingerprint if the event has none. An engine
	// puts it on the last event that it sends, and the front end may have asked
	// for one more event than the client.
	Fingerprint []byte
}

// Fingerprint returns the raw JSON value of the event's system_fingerprint, nil
// if it has none. It is part of the Reader's bytes.
func (c *Chunk) Fingerprint() []byte {
	if c.fingerprint.absent() || unsafeString(c.fingerprint.of(c.event.Data)) == "null" {
		return nil
	}
	return c.fingerprint.of(c.event.Data)
}

// patch replaces one span.
type patch struct {
	span
	with []byte
}

var null = []byte("null")

// Append appends the edited event to dst. Without edits, that is the event as it
// was sent.
func (c *Chunk) Append(dst []byte, e Edit) []byte {
	var room [2*maxIDs + 8]patch // as many as one event can have
	patches := room[:0]
	if e.HideIDs || e.HidePromptIDs {
		for _, s := range c.promptIDs[:c.nPrompts] {
			patches = append(patches, patch{s, null})
		}
	}
	if e.HideIDs {
		for _, s := range c.ids[:c.nIDs] {
			patches = append(patches, patch{s, null})
		}
	}
	switch {
	case c.usage.absent():
	case e.HideUsage:
		patches = append(patches, patch{c.usage, null})
	case e.Usage != nil:
		at := c.usage.from
		gjson.Parse(unsafeString(c.usage.of(c.event.Data))).ForEach(func(k, v gjson.Result) bool {
			n := -1
			switch k.Str {
			case "prompt_tokens":
				n = e.Usage.Prompt
			case "completion_tokens":
				n = e.Usage.Output
			case "total_tokens":
				n = e.Usage.Prompt + e.Usage.Output
			case "prompt_tokens_details":
				v.ForEach(func(k, v gjson.Result) bool {
					with := null
					if k.Str == "cached_tokens" && e.Usage.Cached >= 0 {
						with = strconv.AppendInt(nil, int64(e.Usage.Cached), 10)
					}
					if v.Type != gjson.Null {
						patches = append(patches, patch{spanOf(v).after(at), with})
					}
					return true
				})
			}
			if n >= 0 {
				patches = append(patches, patch{spanOf(v).after(at), strconv.AppendInt(nil, int64(n), 10)})
			}
			return true
		})
	}
	if e.Identity != nil {
		for _, p := range [...]patch{{c.id, e.Identity.ID}, {c.created, e.Identity.Created}, {c.model, e.Identity.Model}, {c.fingerprint, e.Identity.Fingerprint}} {
			if !p.absent() && p.with != nil && (p.span != c.fingerprint || c.Fingerprint() != nil) {
				patches = append(patches, p)
			}
		}
	}
	if e.Fingerprint != nil && !c.Done && c.Failure() == nil {
		if c.fingerprint.absent() {
			if last := c.lastBrace(); last > 0 {
				with := append([]byte(`,"system_fingerprint":`), e.Fingerprint...)
				patches = append(patches, patch{span{last, last}, with})
			}
		} else if c.Fingerprint() == nil {
			patches = append(patches, patch{c.fingerprint, e.Fingerprint})
		}
	}
	if len(patches) == 0 || c.event.Data == nil {
		return append(dst, c.event.Raw...)
	}
	return c.apply(dst, patches)
}

// WithText returns a copy of an event with text that has another text. The error is for an event
// with both text and reasoning: it does not say which of them the text belongs to.
func (c *Chunk) WithText(text string) (*Chunk, error) {
	at := c.text
	if at.absent() {
		at = c.reasoning
	} else if !c.reasoning.absent() {
		return nil, errors.New("an event has both text and reasoning")
	}
	if at.absent() {
		return nil, errors.New("an event has no text")
	}
	var quoted bytes.Buffer
	enc := json.NewEncoder(&quoted)
	enc.SetEscapeHTML(false) // as engines do
	if err := enc.Encode(text); err != nil {
		return nil, err
	}
	inside := quoted.Bytes()[1 : quoted.Len()-len("\"\n")]
	raw := c.apply(nil, []patch{{at, inside}})
	ev, err := NewReader(bytes.NewReader(raw)).Next()
	if err != nil {
		return nil, err
	}
	d := new(Chunk)
	if err := d.Parse(ev); err != nil {
		return nil, err
	}
	return d.Clone(), nil
}

// lastBrace returns the offset in Data of the brace that ends the object.
func (c *Chunk) lastBrace() int {
	for i := len(c.event.Data) - 1; i > 0; i-- {
		if c.event.Data[i] == '}' {
			return i
		}
	}
	return -1
}

// apply appends the event with its patches applied, in the order of their spans.
func (c *Chunk) apply(dst []byte, patches []patch) []byte {
	for i := 1; i < len(patches); i++ {
		for j := i; j > 0 && patches[j].from < patches[j-1].from; j-- {
			patches[j], patches[j-1] = patches[j-1], patches[j]
		}
	}
	head, tail := []byte("data: "), []byte("\n\n")
	if c.event.at >= 0 {
		head, tail = c.event.Raw[:c.event.at], c.event.Raw[c.event.at+len(c.event.Data):]
	}
	dst = append(dst, head...)
	body := len(dst)
	at := 0
	for _, p := range patches {
		dst = append(dst, c.event.Data[at:p.from]...)
		dst = append(dst, p.with...)
		at = p.to
	}
	dst = append(dst, c.event.Data[at:]...)
	if c.event.at < 0 {
		// The data came in several lines. JSON has line ends only between values,
		// where a space is equivalent, so it is sent in one line.
		for i := body; i < len(dst); i++ {
			if dst[i] == '\n' || dst[i] == '\r' {
				dst[i] = ' '
			}
		}
	}
	return append(dst, tail...)
}
