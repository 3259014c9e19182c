package frontend

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
)

// firstText corrects the first text of a leg that continues ids whose text ends inside a
// character. Engines cannot: vLLM 0.32 sends the text of the whole prompt and answer then,
// others lose the character. The text is asked of an engine instead: that of the ids so far,
// without what the client has of it.
type firstText struct {
	server *Server
	ctx    context.Context // the stream's
	target Target          // of the leg
	ids    []uint32        // the last ones of the client's text, then those without text
	shown  string          // the text of ids that the client has
	text   int             // how many of ids it is the text of
}

// errNoText says that an engine has sent text where another one knows none.
var errNoText = errors.New("the engine sends text for token ids that end inside a character")

// newFirstText returns the correction for a leg at a replica. The client has the text of
// ids[:text], of which prompt are the prompt's, without a character that the last of them has
// begun. The error is for engines that turn no ids into text.
func (s *Stream) newFirstText(ctx context.Context, target Target, ids []uint32, prompt, text int) (*firstText, error) {
	from := max(0, text-detokenizeIDs)
	f := &firstText{server: s.server, ctx: s.ctx, target: target, ids: append([]uint32(nil), ids[from:]...)}
	var err error
	if f.text, f.shown, err = f.lastText(ctx, max(0, prompt-from), text-from); err != nil {
		return nil, fmt.Errorf("the text of an answer that ends inside a character: %w", err)
	}
	return f, nil
}

// lastText returns the text of the most ids, from most down to least, whose text ends with a
// character, and how many that are. If there are none, it returns the text of least ids.
func (f *firstText) lastText(ctx context.Context, least, most int) (n int, text string, err error) {
	for n = most; ; n-- {
		if n == 0 {
			return 0, "", nil
		}
		text, err = f.server.textOf(ctx, f.target, f.ids[:n])
		if err != nil || endsCharacter(text) || n <= max(least, most-detokenizeIDs) {
			return n, text, err
		}
	}
}

// correct takes an event of the leg. If it has text, it returns the event with the right one,
// and done: later events need no correction.
func (f *firstText) correct(c *openai.Chunk) (corrected *openai.Chunk, done bool, err error) {
	if f.ids, err = c.AppendIDs(f.ids); err != nil || !c.HasText {
		return c, false, err
	}
	n, text, err := f.lastText(f.ctx, f.text, len(f.ids))
	found := n > f.text && endsCharacter(text)
	if err == nil && !found && c.Finish { // an answer may end inside a character
		text, err = f.server.textOf(f.ctx, f.target, f.ids)
		found = true
	}
	if err != nil {
		return nil, false, fmt.Errorf("the text of an answer that goes on inside a character: %w", err)
	}
	rest, ok := strings.CutPrefix(text, f.shown)
	if !ok || !found {
		return nil, false, errNoText
	}
	corrected, err = c.WithText(rest)
	return corrected, true, err
}
