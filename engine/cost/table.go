package cost

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/cascadeinfer/cascade/internal/atomicfile"
)

// maxRows bounds a table; the largest public one has 62,000.
const maxRows = 2_000_000

// Table is a public measurement table at one of its records: a CSV file with a header line. Columns are found by
// name, so that files with more or reordered columns stay readable. Errors name table, line and column.
type Table struct {
	name   string
	header []string
	record []string
	line   int
	err    error // the first one of Fail
}

// ReadTable calls each with every record of a file that has the required columns. The file may
// be compressed with gzip.
func ReadTable(name string, r io.Reader, each func(t *Table), required ...string) error {
	unzipped, err := atomicfile.GunzipReader(r)
	if err != nil {
		return fmt.Errorf("%s table: %w", name, err)
	}
	c := csv.NewReader(unzipped)
	c.ReuseRecord = true
	header, err := c.Read()
	if err != nil {
		return fmt.Errorf("%s table: header: %w", name, err)
	}
	t := &Table{name: name, header: slices.Clone(header), line: 1}
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
		if t.line++; t.line > maxRows {
			return fmt.Errorf("%s table: more than %d lines", name, maxRows)
		}
		each(t)
		if t.err != nil {
			return t.err
		}
	}
}

// Fail ends the reading with an error about the present record.
func (t *Table) Fail(format string, args ...any) {
	if t.err == nil {
		t.err = fmt.Errorf("%s table: line %d%s", t.name, t.line, fmt.Sprintf(format, args...))
	}
}

// Text returns a column of the present record, "" when there is none.
func (t *Table) Text(column string) string {
	i := slices.Index(t.header, column)
	if i < 0 || i >= len(t.record) {
		return ""
	}
	return t.record[i]
}

// Number parses a column of the present record; where it fails, it returns 0.
func (t *Table) Number(column string) float64 {
	v, err := strconv.ParseFloat(t.Text(column), 64)
	if err != nil || v-v != 0 {
		t.Fail(", column %q: %q is not a finite number", column, t.Text(column))
		return 0
	}
	return v
}
