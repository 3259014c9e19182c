package profiler

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"github.com/cascadeinfer/cascade/engine/profiling"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/policies"
)

// send sends the next request of a slot and returns what it measured. A request that is in flight when the cell
// ends, or that fails, is cut; an error means that it failed.
func (p *Profiler) send(ctx context.Context, c *cellRun, slot int, lengths *rand.Rand) (profiling.Request, error) {
	prompt, output, words, rng := p.lengths(c.log.Cell, slot, lengths)
	body, err := p.body(replay.RandomText(rng, words), output, p.fields)
	if err != nil {
		return profiling.Request{}, err
	}
	start := time.Now()
	a, err := p.exchange(ctx, body, int(output))
	r := profiling.Request{Slot: slot, Prompt: prompt, Output: policies.Tokens(len(a.times)), Start: c.seconds(start), End: c.seconds(time.Now())}
	if a.usage.Reported {
		r.Prompt, r.Cached, r.Output = policies.Tokens(a.usage.Prompt), policies.Tokens(a.usage.Cached), policies.Tokens(a.usage.Completion)
		p.count(words, r.Prompt)
		// Some servers send events without tokens at the end.
		a.times = a.times[:min(len(a.times), max(1, int(r.Output)))]
	}
	if len(a.times) > 0 {
		r.First = c.seconds(a.times[0])
		for i, t := range a.times[1:] {
			// Of times in whole microseconds, so that the rounding does not add up.
			r.Steps = append(r.Steps, t.Sub(c.began).Microseconds()-a.times[i].Sub(c.began).Microseconds())
		}
	}
	if err == nil && r.Output < 1 {
		err = errors.New("the answer has no token")
	}
	r.Cut = err != nil
	if ctx.Err() != nil {
		return r, nil
	}
	return r, err
}

// answer is what one stream brought.
type answer struct {
	times []time.Time // of the events with tokens
	usage replay.Usage
}

// statusError is an answer with a status other than 200.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return fmt.Sprintf("status %d: %.300q", e.status, e.text) }

// errTooLong ends a stream that brings far more events than tokens were asked for.
var errTooLong = errors.New("the stream has more events than tokens were asked for")

// exchange sends a body and reads the stream.
func (p *Profiler) exchange(ctx context.Context, body []byte, output int) (a answer, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, requestTimeout, fmt.Errorf("no end within %v", requestTimeout))
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	path := map[API]string{Completions: "completions", Chat: "chat/completions"}[p.cfg.API]
	r, err := p.request(ctx, http.MethodPost, "v1/"+path, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "text/event-stream")
	response, err := p.client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 4<<10))
		return answer{}, &statusError{response.StatusCode, string(text)}
	}
	a.usage, err = replay.ReadStream(response.Body, func(t time.Time) {
		if a.times = append(a.times, t); len(a.times) > 4*output+16 {
			stop(errTooLong)
		}
	})
	if err == nil {
		// A connection is reused only when its response was read to the end.
		_, _ = io.CopyN(io.Discard, response.Body, 4<<10)
	} else if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return a, err
}

// request returns a request to the endpoint.
func (p *Profiler) request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	address, err := url.JoinPath(p.cfg.Endpoint, path)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return nil, err
	}
	for key, values := range p.cfg.Header {
		r.Header[key] = values
	}
	return r, nil
}

// dialects are the optional fields of a request, from what measures best to what every endpoint accepts.
var dialects = [...]string{
	`"temperature":0,"ignore_eos":true,"stream_options":{"include_usage":true}`,
	`"temperature":0,"stream_options":{"include_usage":true}`,
	`"temperature":0`,
}

// body returns the JSON of a request.
func (p *Profiler) body(text string, output policies.Tokens, fields string) ([]byte, error) {
	model, err := json.Marshal(p.cfg.Model)
	if err != nil {
		return nil, err
	}
	prompt := fmt.Appendf(nil, `"prompt":%q`, text) // plain letters: Go's quotes are JSON's
	if p.cfg.API == Chat {
		prompt = fmt.Appendf(nil, `"messages":[{"role":"user","content":%q}]`, text)
	}
	return fmt.Appendf(nil, `{"model":%s,%s,"max_tokens":%d,"stream":true,%s}`, model, prompt, output, fields), nil
}

// Warmed is what the first requests show about an endpoint.
type Warmed struct {
	Usage     bool    `json:"usage"`      // it reports how many tokens prompts and answers have
	IgnoreEOS bool    `json:"ignore_eos"` // answers have the length that was asked for
	PerWord   float64 `json:"per_word"`   // prompt tokens per word sent
}

// Notes says what is measured less well than at other endpoints.
func (w Warmed) Notes() []string {
	var notes []string
	if !w.Usage {
		notes = append(notes, "The endpoint reports no usage: prompts are counted as one token a word, and answers as one token an event.")
	}
	if !w.IgnoreEOS {
		notes = append(notes, "The endpoint does not accept ignore_eos: answers may end earlier than asked for.")
	}
	return notes
}

// WarmUp sends the endpoint its first requests, which are not measured: engines compile and allocate then. It
// finds out which optional fields the endpoint accepts, and how many tokens a word has. It must be called before
// Run.
func (p *Profiler) WarmUp(ctx context.Context) (Warmed, error) {
	var err error
	for i, fields := range dialects {
		p.fields = fields
		var usage replay.Usage
		usage, err = p.unmeasured(ctx, p.cfg.Grid.Output)
		var refused *statusError
		if errors.As(err, &refused) && (refused.status == http.StatusBadRequest || refused.status == http.StatusUnprocessableEntity) {
			continue
		}
		if err != nil {
			break
		}
		if usage.Reported {
			p.count(unmeasuredWords, policies.Tokens(usage.Prompt))
		}
		return Warmed{Usage: usage.Reported, IgnoreEOS: i == 0, PerWord: p.perWord()}, nil
	}
	return Warmed{}, fmt.Errorf("warm-up request to %s: %w", p.cfg.Endpoint, err)
}

// unmeasuredWords is the length of requests that are not measured.
const unmeasuredWords = 64

// unmeasured sends one request and waits for its end.
func (p *Profiler) unmeasured(ctx context.Context, output policies.Tokens) (replay.Usage, error) {
	p.mu.Lock()
	text := replay.RandomText(p.rng, unmeasuredWords)
	p.mu.Unlock()
	body, err := p.body(text, output, p.fields)
	if err != nil {
		return replay.Usage{}, err
	}
	a, err := p.exchange(ctx, body, int(output))
	return a.usage, err
}
