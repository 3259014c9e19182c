package openai

import (
	"bytes"
	"strconv"
)

// EndingChunks returns the two events that follow the finish reason, the usage
// and [DONE], for a stream whose engine was lost between them and the finish
// reason. The usage has the counts that the front end knows; it omits the cached
// tokens if u.Cached is negative.
func EndingChunks(e Endpoint, id Identity, u Usage) (usage, end *Chunk) {
	object := "text_completion"
	if e == Chat {
		object = "chat.completion.chunk"
	}
	b := append([]byte(nil), `data: {"id":`...)
	b = append(b, orDefault(id.ID, null)...)
	b = append(append(b, `,"object":"`...), object...)
	b = append(append(b, `","created":`...), orDefault(id.Created, null)...)
	b = append(append(b, `,"model":`...), orDefault(id.Model, null)...)
	b = strconv.AppendInt(append(b, `,"choices":[],"usage":{"prompt_tokens":`...), int64(u.Prompt), 10)
	b = strconv.AppendInt(append(b, `,"total_tokens":`...), int64(u.Prompt+u.Output), 10)
	b = strconv.AppendInt(append(b, `,"completion_tokens":`...), int64(u.Output), 10)
	if u.Cached >= 0 {
		b = strconv.AppendInt(append(b, `,"prompt_tokens_details":{"cached_tokens":`...), int64(u.Cached), 10)
		b = append(b, '}')
	}
	b = append(b, '}')
	if id.Fingerprint != nil {
		b = append(append(b, `,"system_fingerprint":`...), id.Fingerprint...)
	}
	b = append(b, "}\n\n"...)
	return parseOwn(b), parseOwn([]byte("data: [DONE]\n\n"))
}

// parseOwn parses an event that this package made.
func parseOwn(raw []byte) *Chunk {
	c := new(Chunk)
	ev, err := NewReader(bytes.NewReader(raw)).Next()
	if err == nil {
		err = c.Parse(ev)
	}
	if err != nil {
		return &Chunk{Empty: true} // cannot happen: an identity that came in an event is JSON
	}
	return c.Clone()
}

func orDefault(b, other []byte) []byte {
	if b == nil {
		return other
	}
	return b
}
