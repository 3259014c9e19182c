package openai

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// Template is the shape of an engine's unstreamed answer, learnt from one: its
// fields, their order and the blanks. Engines of different kinds and versions
// differ in all of that, so the front end does not guess: it relays the first
// answer of a kind as it is and assembles the next ones with its template. A
// Template is immutable.
type Template struct {
	parts []part
}

// part is literal text and the field that follows it.
type part struct {
	text    string
	field   field
	usage   string // the path inside usage, for fieldUsage
	example string // the value in the answer learnt from
}

type field int

const (
	fieldNone field = iota
	fieldID
	fieldCreated
	fieldModel
	fieldFingerprint
	fieldRole
	fieldText
	fieldReasoning
	fieldFinish
	fieldStop
	fieldIDs
	fieldPromptIDs
	fieldUsage
)

// topFields and choiceFields are the fields that vary between answers. Any other
// field must be null or a constant, else answers cannot be assembled.
var (
	topFields = map[string]field{"id": fieldID, "created": fieldCreated, "model": fieldModel,
		"system_fingerprint": fieldFingerprint, "prompt_token_ids": fieldPromptIDs}
	choiceFields = map[string]field{"finish_reason": fieldFinish, "stop_reason": fieldStop, "text": fieldText,
		"token_ids": fieldIDs, "prompt_token_ids": fieldPromptIDs}
	messageFields = map[string]field{"role": fieldRole, "content": fieldText,
		"reasoning": fieldReasoning, "reasoning_content": fieldReasoning}
	constantFields = map[string]bool{"object": true, "index": true, "service_tier": true}
)

// NewTemplate makes a Template from the body of an unstreamed answer with one
// choice. The error names the field that cannot be assembled.
func NewTemplate(body []byte) (*Template, error) {
	if err := CheckObject(body); err != nil {
		return nil, err
	}
	l := templateBuilder{text: string(body)}
	l.addObject(gjson.Parse(l.text), "", topFields)
	if l.err == nil && !l.choice {
		l.err = errors.New("the answer has no choice")
	}
	if l.err != nil {
		return nil, l.err
	}
	l.parts = append(l.parts, part{text: l.text[l.at:]})
	return &Template{parts: l.parts}, nil
}

type templateBuilder struct {
	text   string
	at     int // text before it is in parts
	parts  []part
	choice bool
	err    error
}

// addField ends the literal text before v and makes a field of v.
func (l *templateBuilder) addField(v gjson.Result, s field, usage string) {
	l.parts = append(l.parts, part{text: l.text[l.at:v.Index], field: s, usage: usage, example: v.Raw})
	l.at = v.Index + len(v.Raw)
}

// addObject adds the members of an object: those in fields become fields, known
// structures are added recursively, and any other member must be constant.
func (l *templateBuilder) addObject(v gjson.Result, path string, slots map[string]field) {
	v.ForEach(func(k, v gjson.Result) bool {
		name := path + k.Str
		s, varies := slots[k.Str]
		switch {
		case varies:
			l.addField(v, s, "")
		case name == "choices":
			v.ForEach(func(i, choice gjson.Result) bool {
				if i.Num > 0 || !choice.IsObject() {
					l.err = errors.New("the answer has more than one choice")
					return false
				}
				l.choice = true
				l.addObject(choice, "choices.", choiceFields)
				return l.err == nil
			})
		case name == "choices.message" && v.IsObject():
			l.addObject(v, "message.", messageFields)
		case name == "usage" && v.IsObject():
			l.addUsage(v, "")
		case name == "message.tool_calls" && v.IsArray() && !nonEmpty(v):
		case v.Type == gjson.Null || constantFields[k.Str]:
		default:
			l.err = fmt.Errorf("the answer's %s varies and is not part of a stream", strings.TrimSuffix(name, "."))
		}
		return l.err == nil
	})
}

// addUsage makes fields of the leaves of the usage object.
func (l *templateBuilder) addUsage(v gjson.Result, path string) {
	v.ForEach(func(k, v gjson.Result) bool {
		// A dot or a star in a name would have another meaning in a path.
		name := path + strings.NewReplacer(".", `\.`, "*", `\*`, "?", `\?`).Replace(k.Str)
		if v.IsObject() {
			l.addUsage(v, name+".")
		} else {
			l.addField(v, fieldUsage, name)
		}
		return true
	})
}

// Answer assembles an unstreamed answer from a stream's events. The zero value is
// ready to use.
type Answer struct {
	identity                Identity
	fingerprint, role       []byte
	text, reasoning, usage  []byte
	finish, stop            []byte
	content, thought, ended bool
}

// errUnassemblable is returned for a stream with fields that the answer has no
// place for.
var errUnassemblable = errors.New("the stream carries fields that an assembled answer has no place for")

// Add adds an event. edit is what would be changed about it for a client that
// reads the stream; only Identity and Usage are used.
func (a *Answer) Add(c *Chunk, edit Edit) error {
	if c.unassemblable || c.Choices > 1 {
		return errUnassemblable
	}
	data := c.event.Data
	keep := func(dst *[]byte, s span) {
		if !s.absent() && unsafeString(s.of(data)) != "null" {
			*dst = append((*dst)[:0], s.of(data)...)
		}
	}
	if a.identity.ID == nil && !c.id.absent() {
		a.identity = c.Identity()
	}
	if edit.Identity != nil {
		a.identity = *edit.Identity
	}
	if edit.Identity != nil && edit.Identity.Fingerprint != nil {
		a.fingerprint = append(a.fingerprint[:0], edit.Identity.Fingerprint...) // a copy: other goroutines read it
	} else {
		keep(&a.fingerprint, c.fingerprint)
	}
	keep(&a.role, c.role)
	keep(&a.finish, c.finish)
	keep(&a.stop, c.stop)
	if !c.usage.absent() {
		if u := c.Append(nil, Edit{Usage: edit.Usage}); edit.Usage != nil {
			a.usage = editedUsage(u)
		} else {
			keep(&a.usage, c.usage)
		}
	}
	// The insides of two JSON strings can be joined as they are.
	if !c.text.absent() {
		a.text, a.content = append(a.text, c.text.of(data)...), true
	}
	if !c.reasoning.absent() {
		a.reasoning, a.thought = append(a.reasoning, c.reasoning.of(data)...), true
	}
	a.ended = a.ended || c.Finish
	return nil
}

// editedUsage returns the usage of an edited event.
func editedUsage(raw []byte) []byte {
	return []byte(gjson.Parse(unsafeString(ParseEvent(raw).Data)).Get("usage").Raw)
}

// Body returns the answer in the shape of t. ids and prompt are the token ids to
// show, nil if the client did not ask. The error is for a stream that is not
// complete.
func (a *Answer) Body(t *Template, ids, prompt []uint32) ([]byte, error) {
	if !a.ended || a.identity.ID == nil {
		return nil, errors.New("the stream ended without a finish reason")
	}
	orNull := func(dst, v []byte) []byte {
		if v == nil {
			v = null
		}
		return append(dst, v...)
	}
	quoted := func(dst, inside []byte) []byte { return append(append(append(dst, '"'), inside...), '"') }
	usage := gjson.Parse(unsafeString(a.usage))
	out := make([]byte, 0, len(a.text)+len(a.reasoning)+7*(len(ids)+len(prompt))+1024)
	for _, p := range t.parts {
		out = append(out, p.text...)
		switch p.field {
		case fieldNone:
		case fieldID:
			out = orNull(out, a.identity.ID)
		case fieldCreated:
			out = orNull(out, a.identity.Created)
		case fieldModel:
			out = orNull(out, a.identity.Model)
		case fieldFingerprint:
			if a.fingerprint == nil {
				out = append(out, p.example...)
			} else {
				out = append(out, a.fingerprint...)
			}
		case fieldRole:
			if a.role == nil {
				out = append(out, p.example...)
			} else {
				out = append(out, a.role...)
			}
		case fieldText:
			if a.thought && !a.content {
				out = append(out, null...) // all of it was reasoning
			} else {
				out = quoted(out, a.text)
			}
		case fieldReasoning:
			if a.thought {
				out = quoted(out, a.reasoning)
			} else {
				out = append(out, null...)
			}
		case fieldFinish:
			out = orNull(out, a.finish)
		case fieldStop:
			out = orNull(out, a.stop)
		case fieldIDs:
			out = AppendIDList(out, ids)
		case fieldPromptIDs:
			out = AppendIDList(out, prompt)
		case fieldUsage:
			if v := usage.Get(p.usage); v.Exists() {
				out = append(out, v.Raw...)
			} else {
				out = append(out, null...)
			}
		}
	}
	return out, nil
}

// AppendIDList appends a list of ids as engines write it, null for none.
func AppendIDList(dst []byte, ids []uint32) []byte {
	if ids == nil {
		return append(dst, null...)
	}
	dst = append(dst, '[')
	for i, id := range ids {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(id), 10)
	}
	return append(dst, ']')
}
