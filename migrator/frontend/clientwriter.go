package frontend

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
)

// clientWriter is the client's end of a stream. The pump calls it, without the
// stream's lock because a write may wait for the client. Its errors are those of
// the client's connection.
type clientWriter interface {
	begin(header http.Header) // takes the engine's header fields, before anything else; sends nothing
	write(*openai.Chunk, openai.Edit) error
	// done writes the [DONE] event; prompt and ids are the stream's token ids.
	done(c *openai.Chunk, prompt, ids []uint32) error
	fail(openai.Problem)
	// close comes last: it sends what was kept for the end.
	close()
}

// eventWriter is the clientWriter of a client that reads a stream.
type eventWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	header  http.Header // to be sent with the first event; nil afterwards

	asked    openai.Edit   // hides what the front end asked for, and not the client
	last     *openai.Chunk // with the finish reason, held until the usage event, which has the fingerprint
	lastEdit openai.Edit
}

func newEventWriter(w http.ResponseWriter, asked openai.Edit) *eventWriter {
	return &eventWriter{w: w, control: http.NewResponseController(w), asked: asked}
}

func (o *eventWriter) begin(h http.Header) { o.header = h }

// scratch holds the bytes of an event while it is edited and written.
var scratch = sync.Pool{New: func() any { b := make([]byte, 0, 1<<10); return &b }}

func (o *eventWriter) write(c *openai.Chunk, e openai.Edit) error {
	switch {
	case o.asked.HideIDs && c.OnlyIDs:
		return nil
	case o.asked.HideUsage && c.UsageOnly():
		return o.flushLast(c.Fingerprint())
	case o.last != nil:
		if err := o.flushLast(nil); err != nil {
			return err
		}
	case o.asked.HideUsage && c.Finish && c.Fingerprint() == nil:
		// An engine that was not asked for usage has its fingerprint here.
		o.last, o.lastEdit = c.Clone(), e
		return nil
	}
	return o.relay(c, e)
}

func (o *eventWriter) flushLast(fingerprint []byte) error {
	if o.last == nil {
		return nil
	}
	c, e := o.last, o.lastEdit
	o.last = nil
	if e.Identity != nil && e.Identity.Fingerprint != nil {
		fingerprint = e.Identity.Fingerprint
	}
	e.Fingerprint = fingerprint
	return o.relay(c, e)
}

func (o *eventWriter) done(c *openai.Chunk, _, _ []uint32) error {
	if err := o.flushLast(nil); err != nil {
		return err
	}
	return o.relay(c, openai.Edit{})
}

func (o *eventWriter) fail(p openai.Problem) {
	if o.header != nil { // nothing has been sent
		writeProblem(o.w, p)
		return
	}
	if o.flushLast(nil) == nil {
		o.send(p.Event())
	}
}

func (o *eventWriter) close() {}

// relay sends an event, edited.
func (o *eventWriter) relay(c *openai.Chunk, e openai.Edit) error {
	buf := scratch.Get().(*[]byte)
	*buf = c.Append((*buf)[:0], e)
	err := o.send(*buf)
	if cap(*buf) <= 64<<10 {
		scratch.Put(buf)
	}
	return err
}

func (o *eventWriter) send(b []byte) error {
	if o.header != nil {
		copyToClient(o.w, o.header)
		o.header = nil
		o.w.WriteHeader(http.StatusOK)
	}
	if _, err := o.w.Write(b); err != nil {
		return err
	}
	return o.control.Flush()
}

// answerWriter is the clientWriter of a client that reads one whole answer.
type answerWriter struct {
	w        http.ResponseWriter
	template *answerTemplate
	ids      bool // the client wants token ids
	header   http.Header
	answer   openai.Answer
	failed   []byte // the error that the engine reports inside its stream
	broken   error
	status   int // of the whole answer; 0 while there is none
	body     []byte
}

func (o *answerWriter) begin(h http.Header) { o.header = h }

func (o *answerWriter) write(c *openai.Chunk, e openai.Edit) error {
	if failed := c.Failure(); failed != nil {
		o.failed = append([]byte(nil), failed...)
		return nil
	}
	if c.Empty || o.failed != nil || o.broken != nil {
		return nil
	}
	if o.broken = o.answer.Add(c, e); o.broken != nil {
		o.template.unusable.Store(true) // relay the next answers as they are
	}
	return nil
}

func (o *answerWriter) done(_ *openai.Chunk, prompt, ids []uint32) error {
	if o.failed != nil {
		o.status, o.body = openai.FailureStatus(o.failed), o.failed
		return nil
	}
	if !o.ids {
		prompt, ids = nil, nil
	} else if ids == nil {
		ids = []uint32{}
	}
	body, err := []byte(nil), o.broken
	if err == nil {
		body, err = o.answer.Body(o.template.body, ids, prompt)
	}
	if err != nil {
		o.fail(engineLostProblem(err))
		return nil
	}
	o.status, o.body = http.StatusOK, body
	return nil
}

func (o *answerWriter) fail(p openai.Problem) {
	o.status, o.body = p.Status, p.Body()
	markRefusal(o.w.Header(), p.Status)
}

// close sends the answer.
func (o *answerWriter) close() {
	if o.status == 0 {
		return
	}
	copyToClient(o.w, o.header)
	h := o.w.Header()
	h.Set("Content-Type", o.template.contentType)
	h.Set("Content-Length", strconv.Itoa(len(o.body)))
	o.w.WriteHeader(o.status)
	o.w.Write(o.body)
}

// templateKey distinguishes answers of different shapes.
type templateKey struct {
	endpoint openai.Endpoint
	ids      bool
}

// answerTemplate is the shape of the present engine's unstreamed answers.
type answerTemplate struct {
	body        *openai.Template
	contentType string
	unusable    atomic.Bool // the engine's streams carry more than the template has room for
}

// templateCache holds the templates of the present engine's answers. While one is
// unknown or cannot be learnt, unstreamed requests go to the engine unchanged.
type templateCache struct {
	mu    sync.Mutex
	known map[templateKey]*answerTemplate // nil if it cannot be learnt
}

// get returns the template for assembling answers, nil for none.
func (c *templateCache) get(k templateKey) *answerTemplate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found := c.known[k]; found != nil && !found.unusable.Load() {
		return found
	}
	return nil
}

// learn makes a template of a good answer. The error says why that is impossible;
// it is returned once per key.
func (c *templateCache) learn(k templateKey, contentType string, body []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, tried := c.known[k]; tried {
		return nil
	}
	if c.known == nil {
		c.known = make(map[templateKey]*answerTemplate)
	}
	t, err := openai.NewTemplate(body)
	if err != nil {
		c.known[k] = nil
		return err
	}
	c.known[k] = &answerTemplate{body: t, contentType: contentType}
	return nil
}

// clear drops all templates: the next engine may be a different one.
func (c *templateCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = nil
}
