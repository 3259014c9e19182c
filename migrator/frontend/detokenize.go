package frontend

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/internal/httpserver"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

const (
	// detokenizeTimeout is long because a stream that lost its engine ends without the answer. It takes milliseconds, unless
	// the engine's host is busy.
	detokenizeTimeout = 2 * time.Second
	detokenizeIDs     = 16       // the last ids of a text, which have its last character
	maxDetokenized    = 64 << 10 // bytes of their text
)

// incomplete is what tokenizers make of bytes that are no whole character.
const incomplete = "\uFFFD"

// detokenizePath is the engines' endpoint. Front ends serve it to peers, too.
const detokenizePath = "/detokenize"

// askTextEnd asks an engine whether the text of ids of a stream ends with a character.
// An event with several tokens does not show it: the engine withholds the bytes of a character
// that the last of them has begun.
func (srv *Server) askTextEnd(ctx context.Context, holder policies.Target, ids []uint32) (ends bool, err error) {
	text, err := srv.textOf(ctx, holder, ids[max(0, len(ids)-detokenizeIDs):])
	return endsWithCharacter(text), err
}

// endsWithCharacter reports whether a text is not empty and ends with a whole character.
func endsWithCharacter(text string) bool { return text != "" && !strings.HasSuffix(text, incomplete) }

// textOf asks an engine for the text of ids of a stream. The own engine is asked, whose model is
// the holder's as long as it is ready; if it is not, or does not answer, the holder's is.
func (srv *Server) textOf(ctx context.Context, holder policies.Target, ids []uint32) (text string, err error) {
	if holder.Address == "" || srv.ready.Load() {
		text, err = srv.textAt(ctx, policies.Target{}, ids)
		if err == nil || holder.Address == "" || ctx.Err() != nil {
			return text, err
		}
	}
	text, atHolder := srv.textAt(ctx, holder, ids)
	if atHolder != nil {
		return "", errors.Join(err, fmt.Errorf("at the holder, %s: %w", holder.Replica, atHolder))
	}
	return text, nil
}

// textAt asks the engine at a replica.
func (srv *Server) textAt(ctx context.Context, at policies.Target, ids []uint32) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, detokenizeTimeout)
	defer cancel()
	body, err := json.Marshal(map[string][]uint32{"tokens": ids})
	if err != nil {
		return "", err
	}
	resp, err := srv.detokenize(ctx, at, body)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxDetokenized))
	text := gjson.GetBytes(answer, srv.dialect().Capabilities().Text)
	switch {
	case err != nil:
		return "", fmt.Errorf("POST /detokenize of the engine: %w", err)
	case resp.StatusCode != http.StatusOK || !gjson.ValidBytes(answer) || text.Type != gjson.String:
		return "", fmt.Errorf("POST /detokenize of the engine: status %s: %.100q", resp.Status, answer)
	}
	return text.Str, nil
}

// detokenize sends a request for a text to the own engine or to a peer.
func (srv *Server) detokenize(ctx context.Context, at policies.Target, body []byte) (*http.Response, error) {
	target, transport := srv.engine.JoinPath(detokenizePath), http.RoundTripper(srv.local)
	if at.Address != "" {
		target, transport = &url.URL{Scheme: srv.cfg.PeerScheme, Host: at.Address, Path: detokenizePath}, srv.peers
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if at.Address != "" {
		req.Header.Set(ForwardHeader, string(srv.cfg.Replica))
	}
	return transport.RoundTrip(req)
}

// servePeerDetokenize lets the front end of a stream that runs here ask the own engine. Only
// peers get here: see withPeerIdentity.
func (srv *Server) servePeerDetokenize(w http.ResponseWriter, r *http.Request, body []byte, _ *httpserver.Share) {
	ctx, cancel := context.WithTimeout(r.Context(), detokenizeTimeout)
	defer cancel()
	resp, err := srv.detokenize(ctx, policies.Target{}, body)
	if err != nil {
		srv.refuseEngineFailure(w, srv.requestLog(r.Header), err, losses{peer: true})
		return
	}
	defer resp.Body.Close()
	w.Header().Del(length.RefusedHeader)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(resp.StatusCode)
	io.Copy(w, io.LimitReader(resp.Body, maxDetokenized)) // one that is cut is invalid there
}

// firstTextTimeout bounds the requests about one event; each of them takes at most detokenizeTimeout
// at each of two engines.
const firstTextTimeout = 4 * detokenizeTimeout

// firstText corrects the first text of a leg that continues ids whose text ends inside a
// character. Engines do not handle that: some send the text of the whole prompt and answer
// then, others may lose the character. firstText asks an engine for the text of all ids so far
// instead, and removes what the client has of it.
type firstText struct {
	server   *Server
	ctx      context.Context // the stream's
	target   policies.Target // of the leg
	ids      []uint32        // the last ones of the client's text, then those without text
	shown    string          // the text of ids[:shownIDs], which the client has
	shownIDs int
}

// errTextDiffers says that the text that an engine sent is not the text of its ids.
var errTextDiffers = errors.New("the engine's text is not the text of its token ids")

// newFirstText returns the correction for a leg at target that continues ids; nil if their text ends with
// a whole character. The first ids, as many as prompt says, are the prompt's. The client has the text of
// ids[:textIDs], except a last character that is incomplete. If no engine turns ids into text, it returns
// an error if their text is known to end inside a character or textIDs is less than len(ids); else it
// logs that, and returns nil.
func (s *Stream) newFirstText(ctx context.Context, target policies.Target, ids []uint32, prompt, textIDs int) (*firstText, error) {
	ends, err := s.server.askTextEnd(ctx, target, ids)
	switch {
	case err == nil && ends:
		return nil, nil
	case err != nil && textIDs == len(ids): // an event with several tokens: its text may have ended with a character
		s.log().Info("text not checked; it may lack a character", "error", err)
		return nil, nil
	}
	from := max(0, textIDs-detokenizeIDs)
	f := &firstText{server: s.server, ctx: s.ctx, target: target, ids: slices.Clone(ids[from:])}
	if err == nil {
		f.shownIDs, f.shown, err = f.lastText(ctx, max(0, prompt-from), textIDs-from)
	}
	if err != nil {
		return nil, fmt.Errorf("the text of an answer that ends inside a character: %w", err)
	}
	return f, nil
}

// lastText returns the largest n from least to most for which the text of ids[:n] ends with a whole
// character, and that text. If there is none, it returns least and the text of ids[:least]. least is
// raised to most−detokenizeIDs, which bounds the requests.
func (f *firstText) lastText(ctx context.Context, least, most int) (n int, text string, err error) {
	least = max(least, most-detokenizeIDs)
	for n = most; n > 0; n-- {
		if text, err = f.server.textOf(ctx, f.target, f.ids[:n]); err != nil || endsWithCharacter(text) || n <= least {
			return n, text, err
		}
	}
	return 0, "", nil
}

// correct takes an event of the leg. If it has text, it returns the event with the right one,
// and done: later events need no correction.
func (f *firstText) correct(c *openai.Chunk) (corrected *openai.Chunk, done bool, err error) {
	ids, err := c.AppendIDs(f.ids)
	if err != nil || !c.HasText {
		if err == nil {
			f.ids = ids
		}
		return c, false, nil // the reader of the event reports ids that cannot be read
	}
	f.ids = ids
	ctx, cancel := context.WithTimeout(f.ctx, firstTextTimeout)
	defer cancel()
	text, err := f.textOf(ctx, c)
	if err != nil {
		return nil, false, fmt.Errorf("the text of an answer that goes on inside a character: %w", err)
	}
	corrected, err = c.WithText(text)
	return corrected, true, err
}

// textOf returns the text that an event with text should have.
func (f *firstText) textOf(ctx context.Context, c *openai.Chunk) (string, error) {
	n, text, err := f.lastText(ctx, f.shownIDs, len(f.ids))
	if rest, ok := f.rest(text, c); err != nil || ok {
		return rest, err
	}
	if !c.Finish {
		return "", errTextDiffers
	}
	// The last token of an answer may have no text, although engines can name it, or end inside a
	// character.
	for _, n := range [...]int{n - 1, len(f.ids)} {
		if n <= f.shownIDs {
			continue
		}
		text, err := f.server.textOf(ctx, f.target, f.ids[:n])
		if rest, ok := f.rest(text, c); err != nil || ok {
			return rest, err
		}
	}
	return "", errTextDiffers
}

// rest returns the part of a text that follows the client's text. ok says that there is one, and that it
// agrees with what the engine sent in c: the sent text ends with it, or it ends with the sent text without
// the incomplete character at its beginning. They may differ because /detokenize shows special tokens,
// which answers leave out.
func (f *firstText) rest(text string, c *openai.Chunk) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(text, f.shown)
	sent := c.Text()
	tail := strings.TrimLeft(sent, incomplete)
	return rest, ok && rest != "" && (strings.HasSuffix(sent, rest) || tail != "" && strings.HasSuffix(rest, tail))
}
