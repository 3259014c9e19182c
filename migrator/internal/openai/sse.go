package openai

import (
	"bytes"
	"fmt"
	"io"
	"sync"
)

// MaxEvent bounds one event, in bytes. The largest real one carries the token ids
// of a whole prompt; a million ids fit.
const MaxEvent = 16 << 20

const (
	smallEvent = 1 << 10  // a Reader's buffer at rest: a token's event has 200 to 400 bytes
	largeEvent = 16 << 10 // its size while events are larger
)

// largeBuffers holds buffers of largeEvent bytes. Each stream needs one for its
// first event, and not for long.
var largeBuffers = sync.Pool{New: func() any { return new([largeEvent]byte) }}

// ErrEventTooLarge says that an engine sent an event above MaxEvent.
var ErrEventTooLarge = fmt.Errorf("an event has more than %d bytes", MaxEvent)

// Event is one server-sent event. Its slices belong to the Reader and are valid
// until its next call.
type Event struct {
	Raw  []byte // as it was sent, with the empty line that ends it
	Data []byte // the value of its data fields, joined by newlines; nil if it has none
	at   int    // offset of Data in Raw if it is contiguous there, else −1
}

// Reader splits a byte stream into server-sent events (WHATWG HTML, section 9.2).
// Lines end with LF or CRLF.
//
// A library would return each event's value as a string of its own. That would
// lose the comments and the exact framing, which equality with a direct call
// needs, and cost several allocations per token and a scanner's buffer per idle
// stream. This reader keeps the raw bytes, needs 1 KiB when idle and allocates
// nothing per event.
type Reader struct {
	src        io.Reader
	buf        []byte
	start, end int // buf[start:end] was read and not returned yet
	last       int // length of the event that was returned last
	err        error
}

// NewReader returns a Reader of src. It reads from src only inside Next.
func NewReader(src io.Reader) *Reader { return &Reader{src: src} }

// Next returns the next event. The error is io.EOF if src ended between two
// events, io.ErrUnexpectedEOF if it ended within one, ErrEventTooLarge, or src's
// own; further calls return it again.
func (r *Reader) Next() (Event, error) {
	r.shrink()
	scanned := r.start // no event ends before it
	for {
		if end := blankLine(r.buf[r.start:r.end], scanned-r.start); end > 0 {
			raw := r.buf[r.start : r.start+end]
			r.start += end
			r.last = end
			return ParseEvent(raw), nil
		}
		// A line end may be split between two reads: rescan what may be its
		// start.
		scanned = max(r.start, r.end-3)
		if r.err != nil {
			if r.err == io.EOF && r.end > r.start {
				return Event{}, io.ErrUnexpectedEOF
			}
			return Event{}, r.err
		}
		if grown, err := r.grow(); err != nil {
			return Event{}, err
		} else {
			scanned -= grown
		}
		var n int
		n, r.err = r.src.Read(r.buf[r.end:])
		r.end += n
	}
}

// Detach keeps the bytes of the last event valid: the reader takes another buffer.
func (r *Reader) Detach() {
	rest := r.buf[r.start:r.end]
	r.buf = make([]byte, max(len(rest), smallEvent))
	r.start, r.end = 0, copy(r.buf, rest)
}

// shrink makes the buffer small again once events are small: the first event of a
// stream carries the prompt's ids, later ones a token.
func (r *Reader) shrink() {
	if left := r.end - r.start; cap(r.buf) > smallEvent && r.last <= smallEvent/2 && left < smallEvent {
		small := make([]byte, smallEvent)
		r.end = copy(small, r.buf[r.start:r.end])
		r.replaceBuffer(small)
		r.start = 0
	}
}

// replaceBuffer replaces the buffer, whose content has been copied.
func (r *Reader) replaceBuffer(buf []byte) {
	if len(r.buf) == largeEvent {
		largeBuffers.Put((*[largeEvent]byte)(r.buf))
	}
	r.buf = buf
}

// grow makes room after end and returns by how much the content moved down.
func (r *Reader) grow() (moved int, err error) {
	if r.end < len(r.buf) && r.start < r.end {
		return 0, nil
	}
	moved = r.start
	switch {
	case r.buf == nil:
		r.buf = make([]byte, smallEvent)
	case r.start > 0:
		copy(r.buf, r.buf[r.start:r.end])
	case len(r.buf) >= MaxEvent:
		r.err = ErrEventTooLarge
		return 0, r.err
	case r.end == len(r.buf):
		var bigger []byte
		if len(r.buf) < largeEvent {
			bigger = largeBuffers.Get().(*[largeEvent]byte)[:]
		} else {
			bigger = make([]byte, min(2*len(r.buf), MaxEvent))
		}
		copy(bigger, r.buf)
		r.replaceBuffer(bigger)
	}
	r.end -= moved
	r.start = 0
	return moved, nil
}

// blankLine returns the length of the event at the start of b, including the
// empty line that ends it, or 0 if that line has not arrived. No line end lies
// wholly before from.
func blankLine(b []byte, from int) int {
	for i := max(from-1, 0); ; {
		nl := bytes.IndexByte(b[i:], '\n')
		if nl < 0 {
			return 0
		}
		i += nl + 1
		if i == 1 || i == 2 && b[0] == '\r' {
			return i // an empty line and nothing else
		}
		if i < len(b) && b[i] == '\n' {
			return i + 1
		}
		if i+1 < len(b) && b[i] == '\r' && b[i+1] == '\n' {
			return i + 2
		}
	}
}

var dataField = []byte("data")

// ParseEvent returns the event whose bytes are raw, the empty line that ends it included.
func ParseEvent(raw []byte) Event {
	ev := Event{Raw: raw, at: -1}
	fields := 0
	for at := 0; at < len(raw); {
		line := raw[at:]
		next := len(raw)
		if nl := bytes.IndexByte(line, '\n'); nl >= 0 {
			next = at + nl + 1
			line = line[:nl]
		}
		line = bytes.TrimSuffix(line, []byte{'\r'})
		if value, ok := bytes.CutPrefix(line, dataField); ok && (len(value) == 0 || value[0] == ':') {
			value = bytes.TrimPrefix(value, []byte{':'})
			value = bytes.TrimPrefix(value, []byte{' '})
			if fields++; fields == 1 {
				ev.Data = value
				ev.at = at + len(line) - len(value)
			} else {
				ev.Data = append(append(append(make([]byte, 0, len(raw)), ev.Data...), '\n'), value...)
				ev.at = -1
			}
		}
		at = next
	}
	return ev
}
