package cost

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
)

// maxTableRows bounds a measurement table; the largest public one has 62,000.
const maxTableRows = 2_000_000

// A table reads a CSV file with a header line. Columns are found by name, so
// that files with more or reordered columns stay readable.
type table struct {
	name   string
	csv    *csv.Reader
	header []string
	record []string
	line   int
}

func openTable(name string, r io.Reader, required ...string) (*table, error) {
	c := csv.NewReader(r)
	c.ReuseRecord = true
	header, err := c.Read()
	if err != nil {
		return nil, fmt.Errorf("%s table: header: %w", name, err)
	}
	t := &table{name: name, csv: c, header: slices.Clone(header), line: 1}
	for _, column := range required {
		if !slices.Contains(t.header, column) {
			return nil, fmt.Errorf("%s table: no column %q; is it the right file?", name, column)
		}
	}
	return t, nil
}

// next reads a record; false at the end of the file.
func (t *table) next() (bool, error) {
	record, err := t.csv.Read()
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s table: %w", t.name, err)
	}
	t.line++
	if t.line > maxTableRows {
		return false, fmt.Errorf("%s table: more than %d lines", t.name, maxTableRows)
	}
	t.record = record
	return true, nil
}

// text returns a column of the present record, "" when there is none.
func (t *table) text(column string) string {
	i := slices.Index(t.header, column)
	if i < 0 || i >= len(t.record) {
		return ""
	}
	return t.record[i]
}

// numbers parses columns of the present record.
func (t *table) numbers(columns ...string) ([]float64, error) {
	out := make([]float64, len(columns))
	for i, c := range columns {
		v, err := strconv.ParseFloat(t.text(c), 64)
		if err != nil || v-v != 0 {
			return nil, fmt.Errorf("%s table: line %d, column %q: %q is not a finite number", t.name, t.line, c, t.text(c))
		}
		out[i] = v
	}
	return out, nil
}
