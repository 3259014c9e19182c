package frontend

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

const (
	detokenizeTimeout = 500 * time.Millisecond
	detokenizeIDs     = 16       // the last ids of a text, which have its last character
	maxDetokenized    = 64 << 10 // bytes of their text
)

// incomplete is what tokenizers make of bytes that are no whole character.
const incomplete = "\uFFFD"

// endsWithCharacter asks the own engine whether the text of ids ends with a character. An
// event with several tokens does not show it: the engine withholds the bytes of a
// character that the last of them has begun.
func (srv *Server) endsWithCharacter(ctx context.Context, ids []uint32) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, detokenizeTimeout)
	defer cancel()
	body, err := json.Marshal(map[string][]uint32{"tokens": ids[max(0, len(ids)-detokenizeIDs):]})
	if err != nil {
		return false, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.engine.JoinPath("/detokenize").String(), strings.NewReader(string(body)))
	if err != nil {
		return false, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := srv.local.RoundTrip(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxDetokenized))
	text := gjson.GetBytes(answer, "prompt")
	switch {
	case err != nil:
		return false, fmt.Errorf("POST /detokenize of the engine: %w", err)
	case resp.StatusCode != http.StatusOK || !gjson.ValidBytes(answer) || text.Type != gjson.String:
		return false, fmt.Errorf("POST /detokenize of the engine: status %s: %.100q", resp.Status, answer)
	}
	return text.Str != "" && !strings.HasSuffix(text.Str, incomplete), nil
}
