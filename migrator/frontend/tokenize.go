package frontend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
)

const (
	// tokenizeLeast is the length of a prompt from which on the engine is asked for its ids. For a few
	// thousand tokens the answer takes about 1 ms, computing them about 100 ms. The engine is asked for shorter
	// prompts in two cases: until it has answered once, so that a missing endpoint is noticed where all
	// prompts are short, and if a peer has chosen this replica for what it may copy (HeldHeader).
	tokenizeLeast policies.Tokens = 2048
	// tokenizeTimeout is the default of Config.TokenizeTimeout.
	tokenizeTimeout = 100 * time.Millisecond
	// tokenizeFailures is after how many failed calls in a row calls stop: for tokenizePause, or
	// for tokenizeMissing if the engine has no such endpoint.
	tokenizeFailures = 3
	tokenizePause    = 10 * time.Second
	tokenizeMissing  = 10 * time.Minute
	maxTokenizing    = 4       // calls at a time; requests beyond them do without
	maxTokenized     = 8 << 20 // bytes of an answer
	maxTokenizedText = 1 << 20 // bytes of a prompt; a longer one is not tokenized in time
)

// tokenizer asks the own engine for the token ids of prompts. A request that gets none is placed
// without them: it never fails. It never waits for longer than Config.TokenizeTimeout, or
// Config.MigrationTimeout if it is a chat that cannot move without its ids.
type tokenizer struct {
	slots chan struct{}

	mu     sync.Mutex
	pause  tokenizePauses
	known  bool // that the engine has such an endpoint: it has answered
	warned bool // that it has none

	answered, failures, skipped atomic.Uint64
}

func newTokenizer() *tokenizer { return &tokenizer{slots: make(chan struct{}, maxTokenizing)} }

var (
	// errTokenizerBusy is returned for a prompt for which the engine is not asked now.
	errTokenizerBusy = errors.New("too many calls, or the engine has not answered the last ones")
	// errPromptRefused is returned for a prompt that the engine does not accept, which says
	// nothing about others.
	errPromptRefused = errors.New("the engine refuses the prompt")
	// errNoTokenize is returned if the engine has no endpoint that tokenizes.
	errNoTokenize = errors.New("the engine does not tokenize")
)

// tokenizePauses decides when the engine is not asked: after several failures. A call may time
// out because its prompt is long. So timeouts stop only the calls for prompts that are at least
// as long as the longest of those that timed out last: a client with long prompts does not stop
// the calls for others.
type tokenizePauses struct {
	failed int                   // failures other than timeouts, since the engine has answered
	slow   int                   // timeouts, since the engine has answered
	sizes  [tokenizeFailures]int // of the prompts of the last ones that timed out
	until  time.Time             // until then, prompts of least bytes or more are not asked for
	least  int
}

// allows returns whether the engine is asked for a prompt of that many bytes.
func (p *tokenizePauses) allows(size int, now time.Time) bool {
	return size < p.least || !now.Before(p.until)
}

// record notes the result of a call for a prompt of that many bytes. It returns the length of the
// pause that begins, 0 for none.
func (p *tokenizePauses) record(size int, err error, now time.Time) time.Duration {
	length, least := tokenizePause, 0
	switch {
	case err == nil || errors.Is(err, errPromptRefused): // the engine has answered
		p.failed, p.slow = 0, 0
		return 0
	case errors.Is(err, context.DeadlineExceeded):
		p.sizes[p.slow%len(p.sizes)] = size
		if p.slow++; p.slow < tokenizeFailures {
			return 0
		}
		least = slices.Max(p.sizes[:])
	default:
		if p.failed++; p.failed < tokenizeFailures {
			return 0
		}
		if errors.Is(err, errNoTokenize) {
			length = tokenizeMissing
		}
	}
	if now.Before(p.until) { // calls that began before that pause, or for shorter prompts
		length, least = max(length, p.until.Sub(now)), min(least, p.least)
	}
	p.least, p.until = least, now.Add(length)
	return length
}

// forget forgets what is known of the engine, as another one may run now.
func (t *tokenizer) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pause, t.known, t.warned = tokenizePauses{}, false, false
}

// minKnown returns of how many first tokens of a prompt the ids must be known: if fewer are, the engine is asked. At 0 it
// never is. length is about how many tokens the prompt has.
func (t *tokenizer) minKnown(length policies.Tokens) policies.Tokens {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known && length < tokenizeLeast {
		return 0
	}
	return (length + 1) / 2
}

// mayAsk reports whether the engine may be asked for the tokens of a prompt of that many bytes: not during a pause
// after failures, and never above maxTokenizedText.
func (t *tokenizer) mayAsk(size int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return size <= maxTokenizedText && t.pause.allows(size, time.Now())
}

// tokenize returns the token ids of a request's prompt, unless the engine computes the prompt for that. header has the
// client's fields that engines may see.
func (srv *Server) tokenize(ctx context.Context, req *openai.Request, header http.Header) ([]uint32, error) {
	return srv.askPromptIDs(ctx, srv.dialect(), req, header, srv.cfg.TokenizeTimeout, false)
}

// askPromptIDs is tokenize with the engine's dialect and another bound. mayCompute allows the engine to compute the
// prompt before it answers.
func (srv *Server) askPromptIDs(ctx context.Context, d dialect.Dialect, req *openai.Request, header http.Header, within time.Duration, mayCompute bool) ([]uint32, error) {
	t := srv.tokenizer
	size := len(req.Prompt())
	if !t.mayAsk(size) {
		t.skipped.Add(1)
		return nil, errTokenizerBusy
	}
	select {
	case t.slots <- struct{}{}:
		defer func() { <-t.slots }()
	default:
		t.skipped.Add(1)
		return nil, errTokenizerBusy
	}
	call := d.Tokenize(req)
	if call.Body == nil || call.Computes && !mayCompute {
		return nil, errPromptRefused
	}
	asking, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	ids, err := srv.askTokens(asking, header, call)
	if ctx.Err() != nil {
		return ids, err // the client has left, which says nothing about the engine
	}
	if err != nil && asking.Err() != nil {
		err = context.DeadlineExceeded
	}
	if err == nil {
		t.answered.Add(1)
	} else {
		t.failures.Add(1)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known = t.known || err == nil || errors.Is(err, errPromptRefused)
	if pause := t.pause.record(size, err, time.Now()); pause >= tokenizeMissing && !t.warned {
		t.warned = true
		srv.log.Warn("engine does not tokenize: prompts that are new are placed without their token ids", "pause", pause, "cause", err)
	} else if pause > 0 {
		srv.log.Debug("engine gave no token ids for several prompts; not asking for a while", "pause", pause, "prompt_bytes", t.pause.least, "cause", err)
	}
	return ids, err
}

// askTokens sends one request for token ids.
func (srv *Server) askTokens(ctx context.Context, header http.Header, call dialect.Call) ([]uint32, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.engine.JoinPath(call.Path).String(), bytes.NewReader(call.Body))
	if err != nil {
		return nil, err
	}
	req.Header = header.Clone()
	req.Header.Set("Content-Type", "application/json")
	resp, err := srv.local.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxTokenized))
	switch {
	case err != nil:
		return nil, fmt.Errorf("POST %s of the engine: %w", call.Path, err)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("POST %s of the engine: %w: status %s: %.100q", call.Path, classifyStatus(resp.StatusCode), resp.Status, answer)
	}
	return openai.ParseTokens(answer, call.Tokens)
}

var errTokenizeFailed = errors.New("the engine failed")

// classifyStatus returns which error a status stands for.
func classifyStatus(status int) error {
	switch {
	case status == http.StatusNotFound || status == http.StatusMethodNotAllowed || status == http.StatusNotImplemented:
		return errNoTokenize
	case status/100 == 4 && status != http.StatusRequestTimeout && status != http.StatusTooManyRequests:
		return errPromptRefused
	}
	return errTokenizeFailed
}
