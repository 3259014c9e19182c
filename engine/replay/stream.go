package replay

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tidwall/gjson"
	"github.com/tmaxmax/go-sse"
)

// answer is the content of one event stream.
type answer struct {
	first, last time.Time // of the events that carried tokens
	events      int       // that carried tokens
	role        bool      // the first event of a chat came, which has its role only
	usage       bool      // the server sent exact counts:
	prompt      int64     // usage.prompt_tokens
	cached      int64     // usage.prompt_tokens_details.cached_tokens
	completion  int64     // usage.completion_tokens
}

// Usage is what a stream's last event says about its tokens.
type Usage struct {
	Reported                   bool // false: the engine sent no usage
	Prompt, Cached, Completion int64
}

// ReadStream reads a stream of completion or chat chunks to its end, and calls token with the time of every
// event that has tokens.
func ReadStream(body io.Reader, token func(time.Time)) (Usage, error) {
	a, err := listen(body, func() time.Time {
		now := time.Now()
		token(now)
		return now
	})
	return Usage{a.usage, a.prompt, a.cached, a.completion}, err
}

// tokens returns the length of the answer: the server's count, or the number of events.
func (a answer) tokens() int64 {
	if a.usage {
		return a.completion
	}
	return int64(a.events)
}

// done ends every stream of the OpenAI API.
const done = "[DONE]"

// listen reads a stream of completion chunks to its end. now is read once per event. An error is a
// *failure; the answer holds what came before it.
//
// go-sse costs 0.5 µs and two allocations per event of 220 bytes (the text and its fields), a bare
// line reader 0.3 µs and none. Beside the system call per event, that does not justify a parser of
// our own.
func listen(body io.Reader, now func() time.Time) (answer, error) {
	var a answer
	for event, err := range sse.Read(body, &sse.ReadConfig{MaxEventSize: maxEvent}) {
		if errors.Is(err, bufio.ErrTooLong) {
			return a, &failure{Malformed, fmt.Errorf("an event is longer than %d bytes", maxEvent)}
		}
		if err != nil {
			return a, &failure{Cut, err}
		}
		if event.Data == done {
			return a, nil
		}
		if err := a.take(event, now); err != nil {
			return a, err
		}
	}
	return a, &failure{Cut, errors.New("the stream ended without [DONE]")}
}

// take counts one event.
func (a *answer) take(event sse.Event, now func() time.Time) error {
	if event.Data == "" {
		return nil // a comment or keep-alive
	}
	if event.Type == "error" {
		return &failure{ErrorEvent, errors.New(excerpt(event.Data))}
	}
	if !gjson.Valid(event.Data) || event.Data[0] != '{' {
		return &failure{Malformed, fmt.Errorf("an event is not a JSON object: %s", excerpt(event.Data))}
	}
	var bad error
	known := false
	gjson.Parse(event.Data).ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "choices":
			known = true
			if !value.Get("0").Exists() {
				break // the last event has usage only
			}
			if delta := value.Get("0.delta"); !a.role && a.events == 0 && delta.Get("role").Exists() && delta.Get("content").Str == "" && value.Get("0.finish_reason").Str == "" {
				a.role = true
				break
			}
			a.last = now()
			if a.events++; a.events == 1 {
				a.first = a.last
			}
		case "usage":
			if value.IsObject() {
				a.usage = true
				a.prompt = value.Get("prompt_tokens").Int()
				a.cached = value.Get("prompt_tokens_details.cached_tokens").Int()
				a.completion = value.Get("completion_tokens").Int()
			}
		case "error":
			if value.Exists() && value.Type != gjson.Null {
				bad = &failure{ErrorEvent, errors.New(excerpt(value.Raw))}
				return false
			}
		}
		return true
	})
	if bad == nil && !known {
		bad = &failure{Malformed, fmt.Errorf("an event has no choices: %s", excerpt(event.Data))}
	}
	return bad
}

// excerpt shortens text for an error.
func excerpt(text string) string {
	const most = 200
	if len(text) > most {
		return fmt.Sprintf("%.*q …", most, text)
	}
	return fmt.Sprintf("%q", text)
}
