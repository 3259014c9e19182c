package trace

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// csvNames are the known headers. Azure's files give the time of day; ours
// milliseconds since the start.
var csvNames = [...]fields{
	{at: "arrival_ms", input: "input_tokens", output: "output_tokens"},
	{at: "TIMESTAMP", input: "ContextTokens", output: "GeneratedTokens"},
}

// azureTime is the layout of Azure's TIMESTAMP, without a zone.
const azureTime = "2006-01-02 15:04:05.9999999"

// csvReader decodes the lines after a header.
type csvReader struct {
	*lineReader
	names             fields
	at, input, output int // column indices
	width             int // columns of the header
	epoch             time.Time
}

// newCSV reads the header and returns how the lines after it are decoded.
func newCSV(lines *lineReader) (func(line []byte) (Request, error), error) {
	header, ok := lines.next()
	if !ok {
		return nil, cmp.Or(lines.finish(), io.EOF)
	}
	// Some published files begin with a byte order mark.
	columns := splitCSV(bytes.TrimPrefix(header, []byte("\ufeff")))
	c := &csvReader{lineReader: lines, width: len(columns)}
	if !c.name(columns) {
		return nil, lines.fail("", "the header must name arrival_ms, input_tokens and output_tokens (or TIMESTAMP, ContextTokens and GeneratedTokens); it is %.80q", header)
	}
	return c.decode, nil
}

// splitCSV splits a line of plain cells: trace columns are numbers and times,
// so quotes guard nothing and are dropped.
func splitCSV(line []byte) []string {
	cells := strings.Split(string(line), ",")
	for i := range cells {
		cells[i] = strings.Trim(strings.TrimSpace(cells[i]), `"`)
	}
	return cells
}

// name finds the columns of a request; false when one is missing.
func (c *csvReader) name(columns []string) bool {
	index := func(name string) int {
		return slices.IndexFunc(columns, func(column string) bool { return strings.EqualFold(column, name) })
	}
	for _, names := range csvNames {
		c.names = names
		c.at, c.input, c.output = index(names.at), index(names.input), index(names.output)
		if c.at >= 0 && c.input >= 0 && c.output >= 0 {
			return true
		}
	}
	return false
}

func (c *csvReader) decode(line []byte) (Request, error) {
	cells := splitCSV(line)
	if len(cells) != c.width {
		return Request{}, c.fail("", "%d cells, but the header has %d columns", len(cells), c.width)
	}
	at, err := c.arrival(cells[c.at])
	if err != nil {
		return Request{}, err
	}
	input, err := c.tokens(c.names.input, cells[c.input])
	if err != nil {
		return Request{}, err
	}
	output, err := c.tokens(c.names.output, cells[c.output])
	if err != nil {
		return Request{}, err
	}
	r := Request{At: at, Input: input, Output: output}
	return r, c.check(r, c.names)
}

func (c *csvReader) tokens(field, cell string) (policies.Tokens, error) {
	n, err := strconv.ParseInt(cell, 10, 64)
	if err != nil {
		return 0, c.fail(field, "%.40q is not a whole number of tokens", cell)
	}
	return policies.Tokens(n), nil
}

// arrival reads milliseconds since the start, or Azure's time of day.
func (c *csvReader) arrival(cell string) (time.Duration, error) {
	if c.names.at == csvNames[1].at {
		t, err := time.Parse(azureTime, strings.TrimSuffix(cell, "+00:00"))
		if err != nil {
			return 0, c.fail(c.names.at, "%.40q is not a time like %q", cell, azureTime)
		}
		if c.epoch.IsZero() {
			c.epoch = t
		}
		return t.Sub(c.epoch), nil
	}
	ms, err := strconv.ParseFloat(cell, 64)
	if err != nil {
		return 0, c.fail(c.names.at, "%.40q is not a number of milliseconds", cell)
	}
	at, err := milliseconds(ms)
	if err != nil {
		return 0, c.fail(c.names.at, "%v", err)
	}
	return at, nil
}

// milliseconds converts a finite number whose duration cannot overflow; the
// range proper is check's to judge.
func milliseconds(ms float64) (time.Duration, error) {
	if ms == -1 {
		return NoArrival, nil
	}
	if math.IsNaN(ms) || math.Abs(ms) > float64(math.MaxInt64/int64(time.Millisecond)/2) {
		return 0, errors.New("not a time in milliseconds")
	}
	// Rounded away from 0: a little less than 0 or -1 must pass for neither.
	if ms < 0 {
		return time.Duration(math.Floor(ms * float64(time.Millisecond))), nil
	}
	return time.Duration(math.Round(ms * float64(time.Millisecond))), nil
}
