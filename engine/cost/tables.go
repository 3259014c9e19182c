package cost

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/cascadeinfer/cascade/engine/internal/gunzip"
)

// maxTableRows bounds a measurement table; the largest public one has 62,000.
const maxTableRows = 2_000_000

// A table is a CSV file with a header line. Columns are found by name, so that files
// with more or reordered columns stay readable.
type table struct {
	name   string
	header []string
	record []string
	line   int
	err    error // the first one of fail
}

// readTable calls each with every record of a file that has the required columns. The file may
// be compressed with gzip.
func readTable(name string, r io.Reader, each func(t *table), required ...string) error {
	unzipped, err := gunzip.NewReader(r)
	if err != nil {
		return fmt.Errorf("%s table: %w", name, err)
	}
	c := csv.NewReader(unzipped)
	c.ReuseRecord = true
	header, err := c.Read()
	if err != nil {
		return fmt.Errorf("%s table: header: %w", name, err)
	}
	t := &table{name: name, header: slices.Clone(header), line: 1}
	for _, column := range required {
		if !slices.Contains(t.header, column) {
			return fmt.Errorf("%s table: no column %q; is it the right file?", name, column)
		}
	}
	for {
		t.record, err = c.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s table: %w", name, err)
		}
		if t.line++; t.line > maxTableRows {
			return fmt.Errorf("%s table: more than %d lines", name, maxTableRows)
		}
		each(t)
		if t.err != nil {
			return t.err
		}
	}
}

// fail ends the reading with an error about the present record.
func (t *table) fail(format string, args ...any) {
	if t.err == nil {
		t.err = fmt.Errorf("%s table: line %d%s", t.name, t.line, fmt.Sprintf(format, args...))
	}
}

// text returns a column of the present record, "" when there is none.
func (t *table) text(column string) string {
	i := slices.Index(t.header, column)
	if i < 0 || i >= len(t.record) {
		return ""
	}
	return t.record[i]
}

// number parses a column of the present record; where it fails, it returns 0.
func (t *table) number(column string) float64 {
	v, err := strconv.ParseFloat(t.text(column), 64)
	if err != nil || v-v != 0 {
		t.fail(", column %q: %q is not a finite number", column, t.text(column))
		return 0
	}
	return v
}
