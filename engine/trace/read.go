package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// The caps of a trace file. A line or file beyond them is an error, never a
// larger allocation.
const (
	MaxTokens   policies.Tokens = 1 << 24              // of one prompt or answer
	maxLine                     = 1 << 20              // bytes of one line; 64Ki prefix ids fit
	maxFile                     = 1 << 30              // bytes after decompression
	maxRequests                 = 10_000_000           // of one trace
	maxArrival                  = 366 * 24 * time.Hour // from the start of the trace
)

// ErrEmpty says that a trace holds no request.
var ErrEmpty = errors.New("the trace has no request")

// An Error is a bad place in a trace: file and line, what is wrong with which
// field, and what to do about it.
type Error struct {
	Name  string // the name given to Read
	Line  int    // from 1; 0 where the file as a whole is at fault
	Field string // the column or JSON key; empty where the line as a whole is at fault
	Cause string // what is wrong and what to do
}

// Error prints name:line: field: cause.
func (e *Error) Error() string {
	place := e.Name
	if e.Line > 0 {
		place = fmt.Sprintf("%s:%d", e.Name, e.Line)
	}
	if e.Field != "" {
		place += ": " + e.Field
	}
	return place + ": " + e.Cause
}

// Read reads a whole trace, gzipped or not. The first byte decides the
// format: '{' is Mooncake JSONL, one object with timestamp (ms), input_length,
// output_length and optionally hash_ids per line; anything else is CSV with a
// header line that names arrival_ms, input_tokens and output_tokens (or
// Azure's TIMESTAMP, ContextTokens and GeneratedTokens) in any order, other
// columns being ignored. An arrival of -1 means that the source has no times.
//
// The name is used in errors only. An error is an *Error where a line is at
// fault, and wraps ErrEmpty for a trace without requests. A line that arrives before
// the one above it is an error.
func Read(r io.Reader, name string) ([]Request, error) {
	reader, err := NewReader(r, name)
	if err != nil {
		return nil, err
	}
	requests, err := Collect(reader)
	if err != nil {
		return nil, err
	}
	if len(requests) == 0 {
		return nil, fmt.Errorf("%s: %w", name, ErrEmpty)
	}
	return requests, nil
}

// lineReader yields the lines of a file with their numbers and keeps its caps.
type lineReader struct {
	name    string
	scanner *bufio.Scanner
	line    int
	bytes   int64
	timed   bool // of the requests so far, once there is one
	count   int
	latest  time.Duration // the last arrival
	// unfinished says that the last line had no end.
	unfinished bool
}

// split is bufio.ScanLines.
func (l *lineReader) split(data []byte, atEnd bool) (advance int, line []byte, err error) {
	l.unfinished = atEnd && bytes.IndexByte(data, '\n') < 0
	return bufio.ScanLines(data, atEnd)
}

// next returns the next line that is not blank; false at the end or on an
// error, which finish returns.
func (l *lineReader) next() ([]byte, bool) {
	for l.bytes <= maxFile && l.scanner.Scan() {
		if l.unfinished && l.scanner.Err() != nil {
			return nil, false // the beginning of a line: the file is cut, not the line wrong
		}
		l.line++
		line := l.scanner.Bytes()
		l.bytes += int64(len(line)) + 1
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return line, true
		}
	}
	return nil, false
}

// finish returns the error that ended the reading, if any.
func (l *lineReader) finish() error {
	err := l.scanner.Err()
	switch {
	case l.bytes > maxFile:
		return &Error{Name: l.name, Cause: fmt.Sprintf("larger than %d bytes unpacked; split the trace", maxFile)}
	case errors.Is(err, bufio.ErrTooLong):
		return &Error{Name: l.name, Line: l.line + 1, Cause: fmt.Sprintf("longer than %d bytes; is this a trace?", maxLine)}
	case err != nil:
		return fmt.Errorf("%s:%d: %w", l.name, l.line+1, err)
	}
	return nil
}

// fail names the present line in an error.
func (l *lineReader) fail(field, format string, args ...any) error {
	return &Error{Name: l.name, Line: l.line, Field: field, Cause: fmt.Sprintf(format, args...)}
}

// fields are the names that a format gives to a request's parts.
type fields struct{ at, input, output, prefix string }

// check keeps the invariants of a request that the present line describes.
func (l *lineReader) check(r Request, f fields) error {
	for _, length := range [...]struct {
		field string
		value policies.Tokens
	}{{f.input, r.Input}, {f.output, r.Output}} {
		if length.value < 1 || length.value > MaxTokens {
			return l.fail(length.field, "%d tokens is not in 1 … %d; drop the line or correct it", length.value, MaxTokens)
		}
	}
	if r.At != NoArrival && (r.At < 0 || r.At > maxArrival) {
		return l.fail(f.at, "%v is not in 0 … %v; give milliseconds since the start of the trace, or -1 in every line when there are none", r.At, maxArrival)
	}
	if l.count > 0 && l.timed != (r.At >= 0) {
		return l.fail(f.at, "a trace has arrival times in every line or in none (-1); split the file")
	}
	if r.At >= 0 && r.At < l.latest {
		return l.fail(f.at, "a request arrives at %v, after one at %v; sort the trace by arrival", r.At, l.latest)
	}
	if most := blocks(r.Input); len(r.Prefix) > most {
		return l.fail(f.prefix, "%d ids for a prompt of %d tokens, which has %d blocks of %d", len(r.Prefix), r.Input, most, BlockTokens)
	}
	if l.count++; l.count > maxRequests {
		return l.fail("", "more than %d requests; split the trace", maxRequests)
	}
	l.timed, l.latest = r.At >= 0, max(r.At, l.latest)
	return nil
}
