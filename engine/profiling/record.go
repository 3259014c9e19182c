package profiling

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cascadeinfer/cascade/internal/strictjson"
	"github.com/cascadeinfer/cascade/policies"
)

// Format names the format of record files. A file begins with a line of a Header; every further line is the Log
// of one cell, written when the cell has been measured. Lines are JSON.
const Format = "cascade-profile-record/1"

// Bounds of a record file.
const (
	maxLine   = 256 << 20
	maxCells  = 10_000
	maxTokens = policies.Tokens(1e9) // of a request
	maxTime   = 1e7                  // seconds
)

// Header says what a record file is a measurement of.
type Header struct {
	Format   string    `json:"format"`
	Endpoint string    `json:"endpoint"`
	Model    string    `json:"model"`
	API      string    `json:"api"`
	Started  time.Time `json:"started"`
	Grid     Grid      `json:"grid"`
	Seconds  float64   `json:"seconds"` // bound of the time of a cell
	// Counted: the endpoint reports no usage, so that prompts are counted in words and answers in events.
	Counted bool `json:"counted,omitempty"`
	// Stops: the endpoint does not accept ignore_eos, so that answers may be shorter than asked for.
	Stops bool `json:"stops,omitempty"`
}

// Continues reports whether measurements by b may be added to a file with header h, or why not.
func (h Header) Continues(b Header) error {
	switch {
	case h.Model != b.Model || h.API != b.API:
		return fmt.Errorf("it measures %s by %s, not %s by %s", h.Model, h.API, b.Model, b.API)
	case h.Grid != b.Grid:
		return fmt.Errorf("it has another grid: %+v, not %+v", h.Grid, b.Grid)
	case h.Counted != b.Counted || h.Stops != b.Stops:
		return errors.New("the endpoint accepts other options now")
	}
	return nil
}

// Record is a record file.
type Record struct {
	Header
	Logs []Log
	Size int64 // of the complete lines, in bytes
}

// ReadRecord reads a record file. A last line without an end is ignored: it was being written when the
// measurement was interrupted. An empty file, or one with a part of a header, is io.EOF.
func ReadRecord(r io.Reader) (Record, error) {
	var rec Record
	in := bufio.NewReaderSize(r, 1<<20)
	for n := 1; ; n++ {
		line, err := readLine(in)
		if errors.Is(err, io.EOF) {
			if n == 1 && !beginsHeader(line) {
				return Record{}, fmt.Errorf("it is no record of measurements: it does not begin with %s", headerStart)
			}
			if n == 1 {
				return Record{}, io.EOF
			}
			return rec, nil
		}
		if err == nil {
			err = rec.add(n, line)
		}
		if err != nil {
			return Record{}, fmt.Errorf("record, line %d: %w", n, err)
		}
		rec.Size += int64(len(line))
	}
}

// headerStart is the beginning of every record file.
const headerStart = `{"format":"` + Format + `"`

// beginsHeader reports whether a line that has no end may be a header that was being written.
func beginsHeader(line []byte) bool {
	n := min(len(line), len(headerStart))
	return string(line[:n]) == headerStart[:n]
}

// readLine returns a line with its end.
func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxLine {
			return nil, fmt.Errorf("longer than %d bytes", maxLine)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// add decodes the n-th line.
func (rec *Record) add(n int, line []byte) error {
	if n == 1 {
		if err := strictjson.Unmarshal(line, &rec.Header); err != nil {
			return fmt.Errorf("not a record of \"cascade profile measure\": %w", err)
		}
		if rec.Format != Format {
			return fmt.Errorf("the format is %q, not %q", rec.Format, Format)
		}
		return nil
	}
	if n > maxCells {
		return fmt.Errorf("more than %d cells", maxCells)
	}
	var l Log
	if err := strictjson.Unmarshal(line, &l); err != nil {
		return err
	}
	if err := l.validate(); err != nil {
		return err
	}
	rec.Logs = append(rec.Logs, l)
	return nil
}

// validate bounds the values of a log from a file.
func (l Log) validate() error {
	if l.Batch < 1 || l.Batch > maxBatch {
		return fmt.Errorf("the batch is %d; it must be 1 to %d", l.Batch, maxBatch)
	}
	for i, r := range l.Requests {
		total := int64(0)
		for _, step := range r.Steps {
			if total += step; step < -1e6*maxTime || step > 1e6*maxTime {
				return fmt.Errorf("request %d: a step of %d µs", i, step)
			}
		}
		switch {
		case r.Prompt < 0 || r.Prompt > maxTokens || r.Output < 0 || r.Output > maxTokens || r.Cached < 0 || r.Cached > r.Prompt:
			return fmt.Errorf("request %d: prompt %d (%d cached) and output %d", i, r.Prompt, r.Cached, r.Output)
		case !(r.Start >= 0) || !(r.End >= r.Start) || r.End > maxTime || r.First != 0 && !(r.First >= r.Start && r.First <= r.End):
			return fmt.Errorf("request %d: start %v, first token %v and end %v", i, r.Start, r.First, r.End)
		}
	}
	return nil
}

// AppendLine appends a Header or a Log to a record file, in one write.
func AppendLine[T Header | Log](w io.Writer, v T) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n'))
	return err
}
