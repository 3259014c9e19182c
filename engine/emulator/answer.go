package emulator

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/kvport"
)

// answer writes the JSON of one request's response in vLLM's format, field by field without
// encoding/json, because a chunk is written for every token.
type answer struct {
	api         api
	id, model   string
	fingerprint string
	created     int64
	request     *request
	// prompt is set until the client has received its ids, if it wants them.
	prompt       []model.Token
	promptTokens int
	noDetails    bool           // of prompt tokens
	transfer     *kvport.Params // of an answer whose KV is kept for another engine; else nil

	sent   int // output tokens written
	cached int
	offset int // characters written, as logprobs of completions count them

	vocabulary *model.Vocabulary
}

// ending is how a text ended.
type ending struct {
	reason string // "stop" or "length"; "" while it continues
	stop   string // the stop string that ended it, or ""
	token  model.Token
	by     stopKind
}

// stopKind is the type of an ending's stop_reason.
type stopKind int

const (
	byNothing stopKind = iota // null: length, or the end-of-text token
	byString
	byToken
)

// writeHead starts an object: id, object, created, model.
func (a *answer) writeHead(b []byte, object string) []byte {
	b = append(b, `{"id":`...)
	b = quote(b, a.id)
	b = append(b, `,"object":"`...)
	b = append(b, object...)
	b = append(b, `","created":`...)
	b = strconv.AppendInt(b, a.created, 10)
	b = append(b, `,"model":`...)
	return quote(b, a.model)
}

// writeFirst writes the chunk before any token: chat has one, with the role.
func (a *answer) writeFirst(b []byte) []byte {
	if a.api != chat {
		return b
	}
	b = a.writeHead(append(b, "data: "...), "chat.completion.chunk")
	b = append(b, `,"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":`...)
	b = a.writeIDs(b, a.prompt)
	b = a.runningUsage(b)
	return append(b, "}\n\n"...)
}

// writeChunk writes an event with the text and the ids of some tokens.
func (a *answer) writeChunk(b []byte, text []byte, ids []model.Token, end ending) []byte {
	first := a.sent == 0
	a.sent += len(ids)
	b = append(b, "data: "...)
	switch {
	case a.request.call != "":
		head := `"delta":{"tool_calls":[{"index":0,"function":{"arguments":`
		if first {
			head = `"delta":{"tool_calls":[{"index":0,` + a.callHead() + `,"arguments":`
		}
		b = a.writeChoice(b, "chat.completion.chunk", head, text, `}}]}`, ids, end)
	case a.api == chat:
		b = a.writeChoice(b, "chat.completion.chunk", `"delta":{"content":`, text, `}`, ids, end)
	default:
		b = a.writeChoice(b, "text_completion", `"text":`, text, "", ids, end)
	}
	if a.api == chat {
		if end.reason != "" {
			b = append(b, `,"stop_reason":`...)
			b = end.appendStop(b)
		}
	} else {
		b = append(b, `,"stop_reason":`...)
		b = end.appendStop(b)
		b = append(b, `,"prompt_token_ids":`...)
		if a.prompt != nil {
			b = a.writeIDs(b, a.prompt)
		} else {
			b = append(b, "null"...)
		}
	}
	b = append(b, `,"token_ids":`...)
	b = a.writeIDs(b, ids)
	b = append(b, `}]`...)
	b = a.runningUsage(b)
	if end.reason != "" && !a.request.usage {
		b = append(b, `,"system_fingerprint":`...)
		b = quote(b, a.fingerprint)
	}
	return append(b, "}\n\n"...)
}

// writeChoice writes an object up to the finish reason of its choice.
func (a *answer) writeChoice(b []byte, object, before string, text []byte, after string, ids []model.Token, end ending) []byte {
	b = a.writeHead(b, object)
	b = append(b, `,"choices":[{"index":0,`...)
	b = append(b, before...)
	b = quote(b, text)
	b = append(b, after...)
	b = append(b, `,"logprobs":`...)
	b = a.writeLogprobs(b, ids)
	b = append(b, `,"finish_reason":`...)
	if a.request.call != "" && end.reason == "stop" {
		end.reason = "tool_calls"
	}
	return end.appendReason(b)
}

// callHead returns the beginning of the call of a function, up to its arguments.
func (a *answer) callHead() string {
	return `"id":` + string(quote(nil, "chatcmpl-tool-"+a.id)) + `,"type":"function","function":{"name":` + string(quote(nil, a.request.call))
}

// writeLogprobs writes the log probabilities of some tokens if the client wants them, else null. This engine computes
// its next token, so each has the probability 1, and there are no alternatives.
func (a *answer) writeLogprobs(b []byte, ids []model.Token) []byte {
	if !a.request.logprobs {
		return append(b, "null"...)
	}
	var names, offsets, zeros, tops, content []byte
	for i, id := range ids {
		piece := a.vocabulary.Piece(id)
		name := quote(nil, strings.ToValidUTF8(string(piece), "\ufffd"))
		entry := fmt.Appendf(nil, `"token":%s,"logprob":0.0,"bytes":%s`, name, strings.ReplaceAll(fmt.Sprint([]byte(piece)), " ", ","))
		if i > 0 {
			names, offsets, zeros, tops, content = append(names, ','), append(offsets, ','), append(zeros, ','), append(tops, ','), append(content, ',')
		}
		names, zeros = append(names, name...), append(zeros, "0.0"...)
		offsets = strconv.AppendInt(offsets, int64(a.offset), 10)
		tops = fmt.Appendf(tops, `{%s:0.0}`, name)
		content = fmt.Appendf(content, `{%s,"top_logprobs":[{%s}]}`, entry, entry)
		a.offset += utf8.RuneCount([]byte(piece))
	}
	if a.api == chat {
		return fmt.Appendf(b, `{"content":[%s]}`, content)
	}
	return fmt.Appendf(b, `{"text_offset":[%s],"token_logprobs":[%s],"tokens":[%s],"top_logprobs":[%s]}`, offsets, zeros, names, tops)
}

// writeLast writes the end of a stream: usage, if requested, and the end marker.
func (a *answer) writeLast(b []byte) []byte {
	if a.request.usage {
		object := "text_completion"
		if a.api == chat {
			object = "chat.completion.chunk"
		}
		b = a.writeHead(append(b, "data: "...), object)
		b = a.writeUsage(append(b, `,"choices":[],"usage":`...))
		if !a.noDetails {
			b = fmt.Appendf(b, `,"prompt_tokens_details":{"cached_tokens":%d}`, a.cached)
		}
		b = append(quote(append(b, `},"system_fingerprint":`...), a.fingerprint), "}\n\n"...)
	}
	return append(b, "data: [DONE]\n\n"...)
}

// writeBody writes the body of a response that is not streamed.
func (a *answer) writeBody(b []byte, text []byte, ids []model.Token, end ending) []byte {
	a.sent = len(ids)
	switch {
	case a.request.call != "":
		b = a.writeChoice(b, "chat.completion", `"message":{"role":"assistant","content":null,"refusal":null,"annotations":null,"audio":null,"function_call":null,"tool_calls":[{`+
			a.callHead()+`,"arguments":`, text, `}}],"reasoning":null}`, ids, end)
	case a.api == chat:
		b = a.writeChoice(b, "chat.completion", `"message":{"role":"assistant","content":`, text,
			`,"refusal":null,"annotations":null,"audio":null,"function_call":null,"tool_calls":[],"reasoning":null}`, ids, end)
	default:
		b = a.writeChoice(b, "text_completion", `"text":`, text, "", ids, end)
	}
	b = end.appendStop(append(b, `,"stop_reason":`...))
	b = a.writeIDs(append(b, `,"token_ids":`...), ids)
	prompt := a.writeIDs([]byte(`,"prompt_logprobs":null,"prompt_token_ids":`), a.prompt)
	if a.api == completions {
		b = append(b, prompt...)
		b = append(b, `,"routed_experts":null`...)
	}
	b = quote(append(b, `}],"service_tier":null,"system_fingerprint":`...), a.fingerprint)
	b = a.writeUsage(append(b, `,"usage":`...))
	if a.noDetails {
		b = append(b, `,"prompt_tokens_details":null`...)
	} else {
		b = fmt.Appendf(b, `,"prompt_tokens_details":{"cached_tokens":%d,"created_cache_tokens":null,"multimodal_tokens":null}`, a.cached)
	}
	b = append(b, `,"completion_tokens_details":null}`...)
	if a.api == chat {
		b = append(b, prompt...)
	}
	b = append(b, `,"kv_transfer_params":`...)
	if a.transfer != nil {
		b = a.transfer.Append(b)
	} else {
		b = append(b, "null"...)
	}
	return append(b, `,"ec_transfer_params":null,"metrics":null}`...)
}

// writeUsage starts a usage object; the caller closes it.
func (a *answer) writeUsage(b []byte) []byte {
	return fmt.Appendf(b, `{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d`, a.promptTokens, a.promptTokens+a.sent, a.sent)
}

// runningUsage writes the usage so far, if every chunk contains it.
func (a *answer) runningUsage(b []byte) []byte {
	if a.request.continuousUsage {
		b = append(b, `,"usage":`...)
		b = a.writeUsage(b)
		b = append(b, '}')
	}
	return b
}

// writeIDs writes a list of token ids if the client wants them, else null.
func (a *answer) writeIDs(b []byte, writeIDs []model.Token) []byte {
	if !a.request.tokenIDs {
		return append(b, "null"...)
	}
	return appendIDs(b, writeIDs)
}

func appendIDs(b []byte, ids []model.Token) []byte {
	b = append(b, '[')
	for i, t := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(t), 10)
	}
	return append(b, ']')
}

func (e ending) appendReason(b []byte) []byte {
	if e.reason == "" {
		return append(b, "null"...)
	}
	return quote(b, e.reason)
}

func (e ending) appendStop(b []byte) []byte {
	switch e.by {
	case byString:
		return quote(b, e.stop)
	case byToken:
		return strconv.AppendUint(b, uint64(e.token), 10)
	default:
		return append(b, "null"...)
	}
}

// quote appends s, which must be valid UTF-8, as a JSON string. Unlike encoding/json it does
// not escape <, > and &, like Python.
func quote[T string | []byte](b []byte, s T) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c >= ' ':
			b = append(b, c)
		case c == '\n':
			b = append(b, '\\', 'n')
		case c == '\r':
			b = append(b, '\\', 'r')
		case c == '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(b, '"')
}
