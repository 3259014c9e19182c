package trace

import (
	"bufio"
	"bytes"
	"container/heap"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"time"

	"github.com/cascadeinfer/cascade/internal/atomicfile"
)

// Source yields the requests of a trace in the order of arrival, one by one, and io.EOF after the last one. After an *Error
// with a Line it continues with the next line; any other error is the last.
type Source interface {
	Next() (Request, error)
}

// Collect returns all requests of a source, or its first error.
func Collect(s Source) (requests []Request, err error) {
	for {
		q, err := s.Next()
		if errors.Is(err, io.EOF) {
			return requests, nil
		}
		if err != nil {
			return nil, err
		}
		requests = append(requests, q)
	}
}

// Reader reads a trace line by line, in the order of the file; see Read for the formats. Its memory
// does not grow with the trace.
type Reader struct {
	lines  *lineReader
	decode func(line []byte) (Request, error)
	ended  error
}

// NewReader reads the beginning of a trace. The name is used in errors only.
func NewReader(r io.Reader, name string) (*Reader, error) {
	buffered, err := atomicfile.GunzipReader(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	lines := &lineReader{name: name, scanner: bufio.NewScanner(io.LimitReader(buffered, maxFile+1))}
	lines.scanner.Split(lines.split)
	lines.scanner.Buffer(make([]byte, 0, 64<<10), maxLine)
	first, err := buffered.Peek(1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	out := &Reader{lines: lines, decode: lines.decodeMooncake}
	if !bytes.Equal(first, []byte("{")) {
		out.decode, err = newCSV(lines)
	}
	if errors.Is(err, io.EOF) { // as Next says
		err = nil
	}
	return out, err
}

// Next implements Source.
func (r *Reader) Next() (Request, error) {
	if r.ended != nil {
		return Request{}, r.ended
	}
	line, ok := r.lines.next()
	if !ok {
		if r.ended = r.lines.finish(); r.ended == nil {
			r.ended = io.EOF
		}
		return Request{}, r.ended
	}
	return r.decode(line)
}

// SkipInvalid returns a source without the lines that are at fault; skipped is called with each.
func SkipInvalid(from Source, skipped func(*Error)) Source {
	return sourceFunc(func() (Request, error) {
		for {
			r, err := from.Next()
			var bad *Error
			if !errors.As(err, &bad) || bad.Line == 0 {
				return r, err
			}
			skipped(bad)
		}
	})
}

type sourceFunc func() (Request, error)

func (f sourceFunc) Next() (Request, error) { return f() }

// Stream returns the shaped trace while it is read: its memory grows with Spread only. Next returns ErrNoRate for a
// trace without times if there is no Rate. open starts to read the trace; it is called twice if Rate is to be changed,
// first to measure the rate. The source must yield requests in the order of arrival, as Reader does.
func (s Shape) Stream(open func() (Source, error)) (Source, error) {
	if err := s.validate(); err != nil {
		return nil, err
	}
	factor := 1.0
	switch {
	case s.Speed > 0:
		factor = 1 / s.Speed
	case s.Rate > 0:
		native, err := s.measure(open)
		if err != nil {
			return nil, err
		}
		if native > 0 {
			factor = native / s.Rate
		}
	}
	from, err := open()
	if err != nil {
		return nil, err
	}
	return &stream{shape: s, from: from, factor: factor, rng: rand.New(rand.NewPCG(s.Seed, 0x5ba9e))}, nil
}

// measure returns the rate of the trace without Rate; 0 for one without times.
func (s Shape) measure(open func() (Source, error)) (float64, error) {
	s.Rate = 0
	from, err := open()
	if err != nil {
		return 0, err
	}
	in := &stream{shape: s, from: from, factor: 1, rng: rand.New(rand.NewPCG(s.Seed, 0x5ba9e))}
	count, last := 0, time.Duration(0)
	for {
		r, err := in.Next()
		switch {
		case errors.Is(err, ErrNoRate):
			return 0, nil
		case errors.Is(err, io.EOF):
			if last <= 0 {
				return 0, nil
			}
			return float64(count-1) / last.Seconds(), nil
		}
		var bad *Error
		if errors.As(err, &bad) && bad.Line > 0 {
			continue // the second pass reports it
		}
		if err != nil {
			return 0, err
		}
		count, last = count+1, r.At
	}
}

// stream is the source of Shape.Stream.
type stream struct {
	shape  Shape
	from   Source
	factor float64
	rng    *rand.Rand

	window  arrivalHeap // requests that a later line may precede
	read    int         // lines kept so far
	latest  time.Duration
	drained bool
	given   int
	origin  time.Duration
	poisson float64 // seconds until the next arrival of a trace without times
}

// Next implements Source.
func (s *stream) Next() (Request, error) {
	if s.shape.Limit > 0 && s.given == s.shape.Limit {
		return Request{}, io.EOF
	}
	// A request leaves the window once no later line can come before it.
	for !s.drained && (len(s.window) == 0 || s.window[0].At >= s.latest) {
		if err := s.fill(); err != nil {
			return Request{}, err
		}
	}
	if len(s.window) == 0 {
		return Request{}, io.EOF
	}
	r := heap.Pop(&s.window).(waiting).Request
	if s.given == 0 {
		s.origin = r.At
	}
	s.given++
	if r.At < 0 { // without times
		r.At = time.Duration(s.poisson * float64(time.Second))
		s.poisson += s.rng.ExpFloat64() / s.shape.Rate
		return r, nil
	}
	r.At = time.Duration(math.Round(float64(r.At-s.origin) * s.factor))
	return r, nil
}

// fill reads one line into the window.
func (s *stream) fill() error {
	r, err := s.from.Next()
	if errors.Is(err, io.EOF) {
		s.drained = true
		return nil
	}
	if err != nil {
		return err
	}
	c := s.shape
	if c.MaxInput > 0 && r.Input > c.MaxInput || c.MaxLength > 0 && r.Input+r.Output > c.MaxLength {
		return nil
	}
	if r.At < 0 {
		if c.Rate <= 0 {
			return ErrNoRate
		}
		s.push(r)
		return nil
	}
	if r.At < c.From || c.Until > 0 && r.At > c.Until {
		return nil
	}
	s.latest = r.At
	if c.Spread > 0 {
		r.At += time.Duration(s.rng.Int64N(int64(c.Spread)))
	}
	s.push(r)
	return nil
}

func (s *stream) push(r Request) {
	heap.Push(&s.window, waiting{r, s.read})
	s.read++
}

// waiting is a request in the window, with its place in the trace.
type waiting struct {
	Request
	line int
}

// arrivalHeap orders requests by arrival and then by line. It implements heap.Interface.
type arrivalHeap []waiting

func (h arrivalHeap) Len() int { return len(h) }
func (h arrivalHeap) Less(i, j int) bool {
	return h[i].At < h[j].At || h[i].At == h[j].At && h[i].line < h[j].line
}
func (h arrivalHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *arrivalHeap) Push(x any)   { *h = append(*h, x.(waiting)) }
func (h *arrivalHeap) Pop() any {
	last := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = waiting{}
	*h = (*h)[:len(*h)-1]
	return last
}
