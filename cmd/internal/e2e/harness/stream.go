package harness

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tidwall/gjson"
)

// Forever is the output of streams that last until their test ends.
const Forever = 100_000

// ErrCut means that a stream ended early, and its text was right until then.
var ErrCut = errors.New("the stream ended early")

// Events are the content of a stream of a completion or a chat.
type Events struct {
	Text   strings.Builder
	IDs    []string // of the tokens, if the request asks for them
	Tokens int      // at least the number of events with text
	Failed string   // the error event, if any
	Done   bool     // received [DONE]
}

// Read reads events until the stream ends, and calls each, if not nil, after every event.
func (e *Events) Read(body io.Reader, each func()) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		switch v := gjson.ParseBytes(data); {
		case string(data) == "[DONE]":
			e.Done = true
		case v.Get("error").Exists():
			e.Failed = string(data)
		default:
			choice := v.Get("choices.0")
			e.Text.WriteString(choice.Get("text").Str + choice.Get("delta.content").Str)
			for _, id := range choice.Get("token_ids").Array() {
				e.IDs = append(e.IDs, id.Raw)
			}
			e.Tokens++
		}
		if each != nil {
			each()
		}
	}
	return lines.Err()
}

// Check returns an error unless the stream is complete and has the right text. err is how reading it ended.
func (e *Events) Check(err error, want string) error {
	got := e.Text.String()
	switch {
	case err == nil && e.Done && e.Failed == "" && got == want:
		return nil
	case !e.Done && strings.HasPrefix(want, got):
		return fmt.Errorf("%w, after %d events: error event %q, %v", ErrCut, e.Tokens, e.Failed, err)
	}
	return fmt.Errorf("done %v, error event %q, %v: %s", e.Done, e.Failed, err, difference(got, want))
}

// difference shows where two texts begin to differ.
func difference(got, want string) string {
	i := 0
	for i < len(got) && i < len(want) && got[i] == want[i] {
		i++
	}
	return fmt.Sprintf("%d bytes of %d are right, up to %q, then %.60q instead of %.60q", i, len(want), got[max(0, i-40):i], got[i:], want[i:])
}

// Stream is a stream that a client is reading.
type Stream struct {
	Body   []byte
	Cancel context.CancelFunc // disconnects the client
	Ended  chan struct{}      // closed at its end
	Events                    // valid once ended
	Err    error              // how it ended; valid once ended

	c     *Clients
	begun chan struct{} // closed at its first event
	count atomic.Int64
}

// Start starts a stream at a base URL. It does not wait for the answer.
func (c *Clients) Start(url string, body []byte) *Stream {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Stream{Body: body, Cancel: cancel, Ended: make(chan struct{}), c: c, begun: make(chan struct{})}
	go func() {
		defer close(s.Ended)
		s.Err = s.run(ctx, url+"/v1/completions")
	}()
	c.T.Cleanup(func() { cancel(); <-s.Ended })
	return s
}

func (s *Stream) run(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(WithStream(s.Body)))
	if err != nil {
		return err
	}
	req.Header.Set("content-type", "application/json")
	resp, err := s.c.HTTP.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		return fmt.Errorf("%s: %s", resp.Status, text)
	}
	return s.Read(resp.Body, func() {
		if s.count.Add(1) == 1 {
			close(s.begun)
		}
	})
}

// Stream starts a stream at the data plane and returns after its first event.
func (c *Clients) Stream(body []byte) *Stream {
	c.T.Helper()
	s := c.Start(c.DataPlane, body)
	select {
	case <-s.begun:
	case <-s.Ended:
		c.T.Fatalf("the stream ended before its first token: %v %s", s.Err, s.Failed)
	case <-time.After(Patience):
		c.T.Fatal("the stream does not begin")
	}
	return s
}

// Count returns the number of events so far.
func (s *Stream) Count() int64 { return s.count.Load() }

// Wait waits for the stream's end.
func (s *Stream) Wait() {
	s.c.T.Helper()
	select {
	case <-s.Ended:
	case <-time.After(Patience):
		s.c.T.Fatalf("a stream does not end; it has %d events", s.Count())
	}
}

// Leave disconnects the client and waits for the stream's end.
func (s *Stream) Leave() {
	s.c.T.Helper()
	s.Cancel()
	s.Wait()
}

// Whole waits for the stream's end, and returns an error unless it is complete and has the right text.
func (s *Stream) Whole() error {
	s.c.T.Helper()
	s.Wait()
	want, err := s.c.Oracle().Text(s.Body)
	if err != nil {
		return err
	}
	return s.Check(s.Err, want)
}

// WaitForGrowth waits until each stream has received some more events.
func (c *Clients) WaitForGrowth(streams []*Stream) {
	c.T.Helper()
	c.WaitForEvents(streams, 4)
}

// WaitForEvents waits until each stream has received so many more events.
func (c *Clients) WaitForEvents(streams []*Stream, events int64) {
	c.T.Helper()
	goals := make([]int64, len(streams))
	for i, s := range streams {
		goals[i] = s.Count() + events
	}
	for i, s := range streams {
		c.WaitFor(fmt.Sprintf("stream %d continues", i), func() bool {
			select {
			case <-s.Ended:
				c.T.Fatalf("stream %d ended after %d events: %q, %v", i, s.Count(), s.Failed, s.Err)
			default:
			}
			return s.Count() >= goals[i]
		})
	}
}

// RequireTexts disconnects the clients of streams and checks that what they have received is the beginning of the
// right text.
func (c *Clients) RequireTexts(streams []*Stream) {
	c.T.Helper()
	for i, s := range streams {
		s.Leave()
		if s.Failed != "" || s.Tokens == 0 || !errors.Is(s.Err, context.Canceled) {
			c.T.Errorf("stream %d: %d events, error event %q, %v", i, s.Tokens, s.Failed, s.Err)
			continue
		}
		if err := c.checkBeginning(s); err != nil {
			c.T.Errorf("stream %d: %v", i, err)
		}
	}
}

// maxTokens matches the output that a body asks for.
var maxTokens = regexp.MustCompile(`"max_tokens":([0-9]+)`)

// checkBeginning compares the text of a stream with as much of the oracle's.
func (c *Clients) checkBeginning(s *Stream) error {
	got := strings.TrimRight(s.Text.String(), "\ufffd") // without the beginning of a character
	most, err := strconv.Atoi(string(maxTokens.FindSubmatch(s.Body)[1]))
	// An event has several tokens if the client reads slowly.
	for tokens := 100 + 2*s.Tokens; err == nil; tokens *= 2 {
		var want string
		want, err = c.Oracle().Text(maxTokens.ReplaceAll(s.Body, fmt.Appendf(nil, `"max_tokens":%d`, min(tokens, most))))
		switch {
		case err != nil:
		case strings.HasPrefix(want, got):
			return nil
		case len(want) >= len(got) || tokens >= most:
			err = errors.New(difference(got, want))
		}
	}
	return err
}
