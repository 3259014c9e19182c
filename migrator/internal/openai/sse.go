package openai

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
)

// MaxEvent bounds one event, in bytes. The largest real one carries the token
// ids of a whole prompt: a million of them fit.
const MaxEvent = 16 << 20

const (
	smallEvent = 1 << 10  // a Reader's buffer at rest: a token's event has 200 to 400 bytes
	largeEvent = 16 << 10 // what it takes when that is not enough
)

// larges are buffers of largeEvent bytes: each stream needs one, for its first
// event and not much longer.
var larges = sync.Pool{New: func() any { return new([largeEvent]byte) }}

// ErrEventTooLarge says that an engine sent an event above MaxEvent.
var ErrEventTooLarge = fmt.Errorf("an event has more than %d bytes", MaxEvent)

// Event is one server-sent event. Its slices are the Reader's and hold until
// its next call.
type Event struct {
	Raw  []byte // as it was sent, with the empty line that ends it
	Data []byte // the value of its data fields, joined by newlines; nil when it has none
	at   int    // offset of Data in Raw when it is one piece of it, else -1
}

// Reader cuts a byte stream into server-sent events (WHATWG HTML, section
// 9.2). Lines end with LF or CRLF.
//
// A library would hand out each event's value as a string of its own: the
// comments and the exact framing would be lost, which the answer's equality
// with a direct call needs, and each token would cost several allocations and
// each idle stream a scanner's buffer. This reader keeps the raw bytes, rests
// on 1 KiB and allocates nothing per event.
type Reader struct {
	src        io.Reader
	buf        []byte
	start, end int // buf[start:end] is read and not yet handed out
	last       int // length of the event handed out last
	err        error
}

// NewReader returns a Reader of src. It reads from src only inside Next.
func NewReader(src io.Reader) *Reader { return &Reader{src: src} }

// Next returns the next event. The error is io.EOF when src ended between two
// events, io.ErrUnexpectedEOF when it ended within one, ErrEventTooLarge, or
// src's own; it repeats.
func (r *Reader) Next() (Event, error) {
	r.rest()
	scanned := r.start // everything before it is known not to end the event
	for {
		if end := blankLine(r.buf[r.start:r.end], scanned-r.start); end > 0 {
			raw := r.buf[r.start : r.start+end]
			r.start += end
			r.last = end
			return event(raw), nil
		}
		// A line's end may be cut in two: look again at what may be its start.
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
		if n < 0 || n > len(r.buf)-r.end {
			r.err = errors.New("a reader returned an impossible count")
			n = 0
		}
		r.end += n
	}
}

// rest makes the buffer small again once events are: the first of a stream
// carries the prompt's ids, the others are all alike.
func (r *Reader) rest() {
	if left := r.end - r.start; cap(r.buf) > smallEvent && r.last <= smallEvent/2 && left < smallEvent {
		small := make([]byte, smallEvent)
		r.end = copy(small, r.buf[r.start:r.end])
		r.swap(small)
		r.start = 0
	}
}

// swap replaces the buffer, whose content has been copied.
func (r *Reader) swap(buf []byte) {
	if len(r.buf) == largeEvent {
		larges.Put((*[largeEvent]byte)(r.buf))
	}
	r.buf = buf
}

// grow makes room behind end and returns by how much the content moved down.
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
			bigger = larges.Get().(*[largeEvent]byte)[:]
		} else {
			bigger = make([]byte, min(2*len(r.buf), MaxEvent))
		}
		copy(bigger, r.buf)
		r.swap(bigger)
	}
	r.end -= moved
	r.start = 0
	return moved, nil
}

// blankLine returns the length of the event at the start of b, its ending
// empty line included, or 0 when that line is not there yet. No line's end
// lies wholly before from.
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

// event finds the value of the data fields in a whole event.
func event(raw []byte) Event {
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
