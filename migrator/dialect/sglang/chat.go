package sglang

import (
	"bytes"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
)

// sampling are the members of a chat that mean the same in the sampling_params of /generate, and beside those
// that do not matter there.
var sampling = map[string]bool{"temperature": true, "top_p": true, "top_k": true, "min_p": true, "repetition_penalty": true,
	"stop_token_ids": true, "ignore_eos": true, "skip_special_tokens": true, "no_stop_trim": true}

// generate begins the bodies of /generate. A client's body cannot begin so: rid is withheld from it.
const generate = `{"rid":null,"input_ids":`

// continueChat returns a body of /generate, to which a chat's answer is the text of the ids' continuation. It is
// nil for a chat with members that have no counterpart there, and for one whose sampling would be another one:
// chats take defaults from the model, /generate does not.
func (d Dialect) continueChat(q *openai.Resume, c dialect.Continuation) []byte {
	if !d.plainText || c.IDs == nil {
		return nil
	}
	params, more, greedy, penalty, known := []byte(nil), []byte(nil), false, false, true
	rest := append(append([]byte{'{'}, bytes.TrimPrefix(q.Rest, []byte(","))...), '}')
	gjson.ParseBytes(rest).ForEach(func(k, v gjson.Result) bool {
		member := rest[k.Index : v.Index+len(v.Raw)]
		switch {
		case sampling[k.Str]:
			params = append(append(params, ','), member...)
			greedy = greedy || k.Str == "temperature" && v.Type == gjson.Number && v.Num == 0
			penalty = penalty || k.Str == "repetition_penalty" && v.Type == gjson.Number
		case k.Str == "model" || k.Str == "priority":
			more = append(append(more, ','), member...)
		case v.Type != gjson.Null && k.Str != "user":
			known = false
		}
		return known
	})
	if !known || !(greedy && penalty) && !d.plainDefaults {
		return nil
	}
	dst := openai.AppendIDList(append(make([]byte, 0, 7*len(c.IDs)+len(rest)+256), generate...), c.IDs)
	limit, least := "null", q.Least(c.Output)
	if left := q.Remaining(c.Output); c.Warm {
		limit, least = "1", 0
	} else if left >= 0 {
		limit = strconv.Itoa(left)
	}
	dst = strconv.AppendBool(append(dst, `,"stream":`...), !c.Warm)
	dst = append(append(dst, `,"sampling_params":{"max_new_tokens":`...), limit...)
	dst = strconv.AppendInt(append(dst, `,"min_new_tokens":`...), int64(least), 10)
	return append(append(append(append(dst, params...), '}'), more...), '}')
}

// The beginning of an event of /generate, and what follows its text.
const beforeText, beforeIDs = `{"text":"`, `","output_ids":[`

// chatEvents makes of the events of /generate, each of which has the whole answer so far, those of a chat.
type chatEvents struct {
	events *openai.Reader
	out    []byte // made, and not read yet
	head   string // the beginning of each event
	prompt string // its ids
	// text and ids are the sent part of the answer, as written in events. Each begins with beforeText or beforeIDs.
	text, ids []byte
	begun     bool
	err       error
	model     string
	created   int64
}

func newChatEvents(src io.Reader, body []byte) io.Reader {
	model := gjson.GetBytes(body, "model").Raw
	if model == "" {
		model = `"default"`
	}
	return &chatEvents{events: openai.NewReader(src), model: model, prompt: gjson.GetBytes(body, "input_ids").Raw, created: time.Now().Unix(),
		text: []byte(beforeText), ids: []byte(beforeIDs)}
}

// Read implements io.Reader.
func (r *chatEvents) Read(p []byte) (int, error) {
	for len(r.out) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		var ev openai.Event
		if ev, r.err = r.events.Next(); r.err == nil {
			r.translate(ev)
		}
	}
	n := copy(p, r.out)
	r.out = r.out[n:]
	return n, nil
}

// shorten returns an event without the text and the ids that were sent, unread: they are as long as the answer, and so
// would be the work for each of its tokens. An event that is laid out in another way is returned as it is.
func (r *chatEvents) shorten(event []byte) (data []byte, short bool) {
	rest, ok := bytes.CutPrefix(event, r.text)
	end := 0
	for ok && end < len(rest) && rest[end] != '"' {
		if rest[end] == '\\' {
			end++
		}
		end++
	}
	if more, follow := bytes.CutPrefix(rest[min(end, len(rest)):], r.ids); ok && follow {
		return slices.Concat([]byte(beforeText), rest[:end], []byte(beforeIDs), bytes.TrimPrefix(more, []byte(","))), true
	}
	return event, false
}

// trimPartial returns the text of an event, as JSON, without the character at its end that is not whole yet.
func trimPartial(text string) string {
	for {
		whole := strings.TrimSuffix(strings.TrimRight(text, "\uFFFD"), `\ufffd`)
		if whole == text {
			return text
		}
		text = whole
	}
}

// translate appends what a chat has for an event of /generate.
func (r *chatEvents) translate(ev openai.Event) {
	data, short := r.shorten(ev.Data)
	answer := gjson.ParseBytes(data)
	meta := answer.Get("meta_info")
	if !meta.IsObject() || !gjson.ValidBytes(data) { // [DONE], an error, a comment
		r.out = append(r.out, ev.Raw...)
		return
	}
	text, ids := "", strings.Trim(answer.Get("output_ids").Raw, "[] ")
	if v := answer.Get("text"); v.Type == gjson.String {
		text = v.Raw[1 : len(v.Raw)-1]
	}
	if !short {
		text, ids = text[min(len(r.text)-len(beforeText), len(text)):], ids[min(len(r.ids)-len(beforeIDs), len(ids)):]
	} else if ids != "" && len(r.ids) > len(beforeIDs) {
		ids = "," + ids
	}
	finish := meta.Get("finish_reason")
	if finish.Get("type").Str == "abort" && finish.Get("status_code").Type == gjson.Number { // the engine failed
		r.out = append(r.out, `data: {"error":`+finish.Raw+"}\n\n"...)
		return
	}
	if !r.begun {
		r.begun = true
		r.head = `data: {"id":` + meta.Get("id").Raw + `,"object":"chat.completion.chunk","created":` + strconv.FormatInt(r.created, 10) + `,"model":` + r.model + `,"choices":[`
		r.out = append(r.out, r.head+`{"index":0,"delta":{"role":"assistant","content":"","reasoning_content":null},"logprobs":null,"finish_reason":null,"matched_stop":null,"prompt_token_ids":`+r.prompt+"}]}\n\n"...)
		r.prompt = "" // it is long, and so is the stream
	}
	if !finish.IsObject() {
		text = trimPartial(text)
	}
	if fresh := strings.TrimLeft(ids, ", "); text != "" || fresh != "" {
		r.out = append(r.out, r.head+`{"index":0,"delta":{"content":"`+text+`","reasoning_content":null},"logprobs":null,"finish_reason":null,"matched_stop":null,"token_ids":[`+fresh+"]}]}\n\n"...)
		r.text, r.ids = append(r.text, text...), append(r.ids, ids...)
	}
	if finish.IsObject() {
		matched := finish.Get("matched").Raw
		if matched == "" {
			matched = "null"
		}
		r.out = append(r.out, r.head+`{"index":0,"delta":{"reasoning_content":null},"logprobs":null,"finish_reason":`+finish.Get("type").Raw+`,"matched_stop":`+matched+"}]}\n\n"...)
		prompt, output := meta.Get("prompt_tokens").Int(), meta.Get("completion_tokens").Int()
		r.out = append(r.out, r.head+`],"usage":{"prompt_tokens":`+strconv.FormatInt(prompt, 10)+`,"total_tokens":`+strconv.FormatInt(prompt+output, 10)+
			`,"completion_tokens":`+strconv.FormatInt(output, 10)+`,"prompt_tokens_details":{"cached_tokens":`+strconv.FormatInt(meta.Get("cached_tokens").Int(), 10)+`},"reasoning_tokens":`+strconv.FormatInt(meta.Get("reasoning_tokens").Int(), 10)+`,"completion_tokens_details":null}}`+"\n\n"...)
	}
}
