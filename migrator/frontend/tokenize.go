package frontend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
)

const (
	// tokenizeLeast is the length of a prompt from which on the engine is asked for its ids: the
	// answer costs about a millisecond for a few thousand tokens, computing them a hundred.
	tokenizeLeast policies.Tokens = 2048
	// tokenizeTimeout is the default of Config.TokenizeTimeout.
	tokenizeTimeout = 100 * time.Millisecond
	// tokenizePause is for how long the engine is not asked after it has not answered.
	tokenizePause    = 10 * time.Second
	maxTokenizing    = 4       // calls at a time; requests beyond them do without
	maxTokenized     = 8 << 20 // bytes of an answer
	maxTokenizedText = 1 << 20 // bytes of a prompt; a longer one is not tokenized in time
	tokenizePath     = "/tokenize"
)

// tokenizer asks the own engine for the token ids of prompts. A request that gets none is placed
// without them: it never fails, and never waits for longer than Config.TokenizeTimeout.
type tokenizer struct {
	slots  chan struct{}
	paused atomic.Int64 // until when, in Unix nanoseconds

	answered, failures, skipped atomic.Uint64
}

func newTokenizer() *tokenizer { return &tokenizer{slots: make(chan struct{}, maxTokenizing)} }

// errTokenizerBusy is returned for a prompt for which the engine is not asked now.
var errTokenizerBusy = errors.New("too many calls, or the engine has not answered the last one")

// errPromptRefused is returned for a prompt that the engine does not accept, which says nothing
// about others.
var errPromptRefused = errors.New("the engine refuses the prompt")

// tokenize returns the token ids of a request's prompt. header has the client's fields that
// engines may see.
func (srv *Server) tokenize(ctx context.Context, req *openai.Request, header http.Header) ([]uint32, error) {
	t := srv.tokenizer
	if len(req.Prompt()) > maxTokenizedText {
		t.skipped.Add(1)
		return nil, errTokenizerBusy
	}
	if time.Now().UnixNano() < t.paused.Load() {
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
	body := req.TokenizeBody()
	if body == nil {
		return nil, errPromptRefused
	}
	asking, cancel := context.WithTimeout(ctx, srv.cfg.TokenizeTimeout)
	defer cancel()
	ids, err := srv.askTokens(asking, header, body)
	switch {
	case err == nil:
		t.answered.Add(1)
	case ctx.Err() == nil:
		t.failures.Add(1)
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, errPromptRefused) {
		t.paused.Store(time.Now().Add(tokenizePause).UnixNano())
		srv.log.Debug("engine gave no token ids for a prompt; not asking for a while", "pause", tokenizePause, "error", err)
	}
	return ids, err
}

// askTokens sends one request for token ids.
func (srv *Server) askTokens(ctx context.Context, header http.Header, body []byte) ([]uint32, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.engine.JoinPath(tokenizePath).String(), bytes.NewReader(body))
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
		return nil, fmt.Errorf("POST %s of the engine: %w", tokenizePath, err)
	case resp.StatusCode == http.StatusBadRequest || resp.StatusCode == http.StatusUnprocessableEntity:
		return nil, errPromptRefused
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("POST %s of the engine: status %s: %.100q", tokenizePath, resp.Status, answer)
	}
	return openai.ParseTokens(answer)
}
