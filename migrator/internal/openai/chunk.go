package openai

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/tidwall/gjson"
)

// Chunk is one parsed event of a streamed answer: its facts, and where in its
// bytes they are. It refers to the Reader's bytes and is valid as long as they
// are; Clone makes a copy that lasts.
type Chunk struct {
	event Event

	Done    bool // the event is "[DONE]"
	Empty   bool // the event carries no data: a comment, or fields that mean nothing here
	Choices int  // how many choices it has
	Finish  bool // a choice has a finish reason
	Tokens  int  // how many generated token ids it carries, over all choices
	// HasText is true if a choice carries text. A token that ends inside a
	// character has none; its bytes come with the next token.
	HasText bool
	// OnlyIDs is true for a chat event that carries nothing but token ids:
	// engines send those only to clients that asked for ids.
	OnlyIDs bool

	id, created, model, fingerprint, usage, failure span
	ids, promptIDs                                  [maxIDs]span
	nIDs, nPrompts                                  int
	finish, stop, text, reasoning, role             span
	reasoningKey                                    string
	unassemblable                                   bool // a delta has a field that assembled answers lack
}

// maxIDs bounds the lists of token ids in one event. There is one per choice, and
// engines send one choice per event.
const maxIDs = 8

var done = []byte("[DONE]")

// errNotChunk is returned for an event that has neither choices nor an error.
var errNotChunk = errors.New("an event has neither choices nor an error")

// Parse parses an event. The error says what about the event is not of the API;
// the chunk is then invalid. A Chunk can be reused.
func (c *Chunk) Parse(ev Event) error {
	*c = Chunk{event: ev}
	if ev.Data == nil {
		c.Empty = true
		return nil
	}
	if bytes.Equal(ev.Data, done) {
		c.Done = true
		return nil
	}
	if err := CheckObject(ev.Data); err != nil {
		return fmt.Errorf("an event is %w", err)
	}
	var err error
	known := false
	gjson.Parse(unsafeString(ev.Data)).ForEach(func(k, v gjson.Result) bool {
		switch k.Str {
		case "id":
			c.id = spanOf(v)
		case "created":
			c.created = spanOf(v)
		case "model":
			c.model = spanOf(v)
		case "system_fingerprint":
			c.fingerprint = spanOf(v)
		case "usage":
			if v.Type != gjson.Null {
				c.usage = spanOf(v)
			}
		case "error":
			c.failure, known = spanOf(v), known || v.Type != gjson.Null
		case "prompt_token_ids":
			err = c.noteIDs(&c.promptIDs, &c.nPrompts, v)
		case "choices":
			known = v.IsArray()
			v.ForEach(func(_, choice gjson.Result) bool {
				c.Choices++
				err = c.choice(choice)
				return err == nil
			})
		}
		return err == nil
	})
	if err == nil && !known {
		err = errNotChunk
	}
	return err
}

// choice parses one choice.
func (c *Chunk) choice(choice gjson.Result) (err error) {
	c.OnlyIDs = c.Choices == 1
	choice.ForEach(func(k, v gjson.Result) bool {
		switch k.Str {
		case "text":
			c.OnlyIDs = false
			c.setText(&c.text, v)
		case "delta":
			v.ForEach(func(k, v gjson.Result) bool {
				c.OnlyIDs = false
				switch k.Str {
				case "content":
					c.setText(&c.text, v)
				case "reasoning", "reasoning_content":
					c.reasoningKey = "reasoning"
					if len(k.Str) > len(c.reasoningKey) {
						c.reasoningKey = "reasoning_content"
					}
					c.setText(&c.reasoning, v)
				case "role":
					c.role = spanOf(v)
				default:
					c.unassemblable = c.unassemblable || v.Type != gjson.Null
				}
				return true
			})
		case "finish_reason":
			if v.Type != gjson.Null {
				c.Finish, c.OnlyIDs = true, false
			}
			c.finish = spanOf(v)
		case "stop_reason":
			c.stop = spanOf(v)
		case "logprobs":
			c.OnlyIDs = c.OnlyIDs && v.Type == gjson.Null
		case "token_ids":
			err = c.noteIDs(&c.ids, &c.nIDs, v)
		case "prompt_token_ids":
			err = c.noteIDs(&c.promptIDs, &c.nPrompts, v)
		}
		return err == nil
	})
	return err
}

// setText records the inside of a string, between its quotes.
func (c *Chunk) setText(s *span, v gjson.Result) {
	if v.Type == gjson.String && len(v.Raw) > 2 {
		c.HasText = true
		*s = span{v.Index + 1, v.Index + len(v.Raw) - 1}
	}
}

func (c *Chunk) noteIDs(list *[maxIDs]span, n *int, v gjson.Result) error {
	if v.Type == gjson.Null {
		return nil
	}
	if !v.IsArray() {
		return errors.New("an event has token ids that are not a list")
	}
	if *n == maxIDs {
		return fmt.Errorf("an event has more than %d lists of token ids", maxIDs)
	}
	list[*n] = spanOf(v)
	*n++
	if list == &c.ids {
		v.ForEach(func(_, _ gjson.Result) bool { c.Tokens++; return true })
	}
	return nil
}

// AppendIDs appends the generated token ids to dst. The error is for an id that
// is not a 32-bit number; dst is then returned unchanged.
func (c *Chunk) AppendIDs(dst []uint32) ([]uint32, error) {
	return appendIDs(dst, c.event.Data, c.ids[:c.nIDs])
}

// promptSlack is the room for generated ids that is allocated with a prompt's
// ids.
const promptSlack = 64

// AppendPromptIDs appends the prompt's token ids to dst. One event of a stream
// carries them.
func (c *Chunk) AppendPromptIDs(dst []uint32) ([]uint32, error) {
	// Room for the prompt and the first tokens; doubling would waste half.
	dst = slices.Grow(dst, c.PromptTokens()+promptSlack)
	return appendIDs(dst, c.event.Data, c.promptIDs[:min(c.nPrompts, 1)])
}

// FinishReason returns the finish reason of the event's last choice, a string; "" for none.
func (c *Chunk) FinishReason() string {
	if !c.Finish {
		return ""
	}
	return gjson.ParseBytes(c.finish.of(c.event.Data)).Str
}

// ListsIDs reports whether the event has a list of generated token ids, which may
// be empty.
func (c *Chunk) ListsIDs() bool { return c.nIDs > 0 }

// HasPromptIDs reports whether the event carries the prompt's token ids.
func (c *Chunk) HasPromptIDs() bool { return c.nPrompts > 0 }

// PromptTokens returns the length of the prompt if HasPromptIDs, without parsing
// the ids.
func (c *Chunk) PromptTokens() int {
	if c.nPrompts == 0 {
		return 0
	}
	list := c.promptIDs[0].of(c.event.Data)
	if len(bytes.Trim(list, "[] \t\r\n")) == 0 {
		return 0
	}
	return bytes.Count(list, []byte{','}) + 1
}

func appendIDs(dst []uint32, data []byte, lists []span) ([]uint32, error) {
	was := dst
	for _, list := range lists {
		b := list.of(data)
		for i := 0; i < len(b); {
			switch b[i] {
			case '[', ']', ',', ' ', '\t', '\r', '\n':
				i++
				continue
			}
			from := i
			for i < len(b) && b[i] >= '0' && b[i] <= '9' {
				i++
			}
			id, err := strconv.ParseUint(unsafeString(b[from:i]), 10, 32)
			if err != nil {
				return was, errors.New("an event has a token id that is not a 32-bit number")
			}
			dst = append(dst, uint32(id))
		}
	}
	return dst, nil
}

// UsageOnly reports whether the event is the usage at the end of a stream.
func (c *Chunk) UsageOnly() bool {
	return c.Choices == 0 && !c.usage.absent() && c.failure.absent()
}

// Usage returns the counts of the event's usage; ok is false if it has none.
// Cached is 0 if the engine does not report it.
func (c *Chunk) Usage() (u Usage, ok bool) {
	if c.usage.absent() {
		return Usage{}, false
	}
	return usageOf(gjson.Parse(unsafeString(c.usage.of(c.event.Data))))
}

// Failure returns the event's JSON text if it is an error that the engine reports
// inside a stream, else nil.
func (c *Chunk) Failure() []byte {
	if c.failure.absent() || unsafeString(c.failure.of(c.event.Data)) == "null" {
		return nil
	}
	return c.event.Data
}

// Text returns the event's text and reasoning.
func (c *Chunk) Text() string {
	text := ""
	for _, s := range [...]span{c.reasoning, c.text} {
		if !s.absent() {
			text += gjson.Parse(`"` + string(s.of(c.event.Data)) + `"`).Str
		}
	}
	return text
}

// Raw returns the event as it was sent.
func (c *Chunk) Raw() []byte { return c.event.Raw }

// Clone returns a chunk that shares nothing with the Reader.
func (c *Chunk) Clone() *Chunk {
	d := *c
	d.event.Raw = slices.Clone(c.event.Raw)
	if c.event.at >= 0 {
		d.event.Data = d.event.Raw[c.event.at : c.event.at+len(c.event.Data)]
	} else {
		d.event.Data = slices.Clone(c.event.Data)
	}
	return &d
}

// Identity is what marks events as parts of one answer: raw JSON values, nil for
// those that are unknown.
type Identity struct{ ID, Created, Model, Fingerprint []byte }

// Identity returns copies of the event's values.
func (c *Chunk) Identity() Identity {
	get := func(s span) []byte {
		if s.absent() {
			return nil
		}
		return slices.Clone(s.of(c.event.Data))
	}
	return Identity{get(c.id), get(c.created), get(c.model), slices.Clone(c.Fingerprint())}
}

// Usage is the token counts of an answer.
type Usage struct {
	Prompt, Output, Cached int
	HasCached              bool // the engine reports Cached
}

// ParseUsage returns the counts of an unstreamed answer; ok is false if it has
// none.
func ParseUsage(body []byte) (u Usage, ok bool) {
	if CheckObject(body) != nil {
		return Usage{}, false
	}
	return usageOf(gjson.Parse(unsafeString(body)).Get("usage"))
}

func usageOf(v gjson.Result) (Usage, bool) {
	if !v.IsObject() {
		return Usage{}, false
	}
	var u Usage
	v.ForEach(func(k, n gjson.Result) bool {
		switch k.Str {
		case "prompt_tokens":
			u.Prompt = int(n.Int())
		case "completion_tokens":
			u.Output = int(n.Int())
		case "prompt_tokens_details":
			cached := n.Get("cached_tokens")
			u.Cached, u.HasCached = int(cached.Int()), cached.Type == gjson.Number
		}
		return true
	})
	return u, true
}
