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
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/internal/httpserver"
	"github.com/cascadeinfer/cascade/policies"
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
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(resp.StatusCode)
	io.Copy(w, io.LimitReader(resp.Body, maxDetokenized)) // one that is cut is invalid there
}
