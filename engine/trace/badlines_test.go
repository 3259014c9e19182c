package trace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// A badLine is a line that no reader accepts, and the field that every error names.
type badLine struct{ line, field string }

// formats are the formats of traces: what comes first, lines that are right, at 0 s and 1 s, and bad ones.
var formats = map[string]struct {
	header, first, last string
	bad                 []badLine
}{
	"csv": {"arrival_ms,input_tokens,output_tokens\n", "0,600,1\n", "1000,700,2\n", []badLine{
		{"500,1", ""},
		{"500,1,2,3", ""},
		{",1,1", "arrival_ms"},
		{"soon,1,1", "arrival_ms"},
		{"NaN,1,1", "arrival_ms"},
		{"+Inf,1,1", "arrival_ms"},
		{"-Inf,1,1", "arrival_ms"},
		{"1e999,1,1", "arrival_ms"},
		{"1e300,1,1", "arrival_ms"},
		{"-2,1,1", "arrival_ms"},
		{"-1,1,1", "arrival_ms"}, // others have times
		{"99999999999999,1,1", "arrival_ms"},
		{"500,,1", "input_tokens"},
		{"500,0,1", "input_tokens"},
		{"500,-4,1", "input_tokens"},
		{"500,NaN,1", "input_tokens"},
		{"500,4.5,1", "input_tokens"},
		{"500,1e3,1", "input_tokens"},
		{"500,16777217,1", "input_tokens"},
		{"500,99999999999999999999,1", "input_tokens"},
		{"500,1,0", "output_tokens"},
		{"500,1,-1", "output_tokens"},
		{"500,1,Inf", "output_tokens"},
		{"500,1,99999999999999999999", "output_tokens"},
	}},
	"azure": {"TIMESTAMP,ContextTokens,GeneratedTokens\n", "2023-11-16 18:15:46,600,1\n", "2023-11-16 18:15:47,700,2\n", []badLine{
		{"46.5,1,1", "TIMESTAMP"},
		{"2023-13-16 18:15:46,1,1", "TIMESTAMP"},
		{"2023-11-16 18:15:45,1,1", "TIMESTAMP"}, // before the first
		{"9999-11-16 18:15:46,1,1", "TIMESTAMP"},
		{"2023-11-16 18:15:46.5,x,1", "ContextTokens"},
		{"2023-11-16 18:15:46.5,0,1", "ContextTokens"},
		{"2023-11-16 18:15:46.5,1,0", "GeneratedTokens"}, // as in the published files
	}},
	"mooncake": {"", `{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}` + "\n", `{"timestamp": 1000, "input_length": 700, "output_length": 2, "hash_ids": [1, 3]}` + "\n", []badLine{
		{"500,1,1", ""},
		{`{"timestamp": 500`, ""},
		{`{"timestamp": 500, "input_length": 1, "output_length": 1} {}`, ""},
		{`[]`, ""},
		{`{"input_length": 1, "output_length": 1}`, "timestamp"},
		{`{"timestamp": null, "input_length": 1, "output_length": 1}`, "timestamp"},
		{`{"timestamp": NaN, "input_length": 1, "output_length": 1}`, "timestamp"},
		{`{"timestamp": Infinity, "input_length": 1, "output_length": 1}`, "timestamp"},
		{`{"timestamp": 1e999, "input_length": 1, "output_length": 1}`, "timestamp"},
		{`{"timestamp": 1e300, "input_length": 1, "output_length": 1}`, "timestamp"},
		{`{"timestamp": -7, "input_length": 1, "output_length": 1}`, "timestamp"},
		{`{"timestamp": -1, "input_length": 1, "output_length": 1}`, "timestamp"},
		{`{"timestamp": "5", "input_length": 1, "output_length": 1}`, "timestamp"},
		{`{"timestamp": 500, "output_length": 1}`, "input_length"},
		{`{"timestamp": 500, "input_length": NaN, "output_length": 1}`, "input_length"},
		{`{"timestamp": 500, "input_length": 1e30, "output_length": 1}`, "input_length"},
		{`{"timestamp": 500, "input_length": 1.5, "output_length": 1}`, "input_length"},
		{`{"timestamp": 500, "input_length": 0, "output_length": 1}`, "input_length"},
		{`{"timestamp": 500, "input_length": 1, "output_length": 0}`, "output_length"},
		{`{"timestamp": 500, "input_length": 1, "output_length": -3}`, "output_length"},
		{`{"timestamp": 500, "input_length": 1, "output_length": 99999999999999999999}`, "output_length"},
		{`{"timestamp": 500, "input_length": 1, "output_length": 1, "hash_ids": 7}`, "hash_ids"},
		{`{"timestamp": 500, "input_length": 1, "output_length": 1, "hash_ids": ["7"]}`, "hash_ids"},
		{`{"timestamp": 500, "input_length": 1, "output_length": 1, "hash_ids": [-7]}`, "hash_ids"},
		{`{"timestamp": 500, "input_length": 1, "output_length": 1, "hash_ids": [0.5]}`, "hash_ids"},
		{`{"timestamp": 500, "input_length": 1, "output_length": 1, "hash_ids": [null]}`, "hash_ids"},
		{`{"timestamp": 500, "input_length": 600, "output_length": 1, "hash_ids": [1, NaN]}`, "hash_ids"},
		{`{"timestamp": 500, "input_length": 1, "output_length": 1, "hash_ids": [18446744073709551616]}`, "hash_ids"},
		{`{"timestamp": 500, "input_length": 513, "output_length": 1, "hash_ids": [1, 2, 3]}`, "hash_ids"},
	}},
}

// readers are all ways to read a trace.
var readers = map[string]func(text string) (Source, error){
	"Read": func(text string) (Source, error) {
		requests, err := Read(strings.NewReader(text), "t")
		return sourceOf(requests), err
	},
	"Reader":         func(text string) (Source, error) { return NewReader(strings.NewReader(text), "t") },
	"Stream":         Shape{}.streamOf,
	"Stream to rate": Shape{Rate: 5}.streamOf,
	"Stream spread":  Shape{Spread: time.Second}.streamOf,
}

func (s Shape) streamOf(text string) (Source, error) {
	return s.Stream(func() (Source, error) { return NewReader(strings.NewReader(text), "t") })
}

func sourceOf(requests []Request) Source {
	return sourceFunc(func() (Request, error) {
		if len(requests) == 0 {
			return Request{}, io.EOF
		}
		first := requests[0]
		requests = requests[1:]
		return first, nil
	})
}

// TestBadLines gives each bad line to each reader, plain and gzipped, between two lines that are right: the
// error names file, line and field, and SkipInvalid drops and counts that line alone.
func TestBadLines(t *testing.T) {
	for format, f := range formats {
		number := strings.Count(f.header+f.first, "\n") + 1
		for _, bad := range f.bad {
			place := fmt.Sprintf("t:%d: ", number)
			if bad.field != "" {
				place += bad.field + ": "
			}
			text := f.header + f.first + bad.line + "\n" + f.last
			for name, open := range readers {
				for packed, text := range map[string]string{"": text, " gzipped": zipped(t, text)} {
					if err := firstError(open(text)); err == nil || !strings.HasPrefix(err.Error(), place) || bad.field == "" && strings.Contains(strings.TrimPrefix(err.Error(), place), "_length: ") {
						t.Errorf("%s, %s%s: %s: %v, want an error that begins with %q", format, name, packed, bad.line, err, place)
					}
					if name == "Read" {
						continue // it reads all or nothing
					}
					skipped := 0
					from, err := open(text)
					testkit.NoError(t, err)
					got, err := Collect(SkipInvalid(from, func(*Error) { skipped++ }))
					if err != nil || len(got) != 2 || skipped != 1 || got[0].Input != 600 || got[1].Input != 700 {
						t.Errorf("%s, %s%s: %s: skipped %d, read %v, %v", format, name, packed, bad.line, skipped, got, err)
					}
				}
			}
		}
	}
}

// TestCutFiles cuts gzip files: no reader takes them for whole, and SkipInvalid drops nothing of them.
func TestCutFiles(t *testing.T) {
	for format, f := range formats {
		whole := zipped(t, f.header+f.first+f.last)
		for _, cut := range []int{3, 15, len(whole) / 2, len(whole) - 9, len(whole) - 1} {
			for name, open := range readers {
				if err := firstError(open(whole[:cut])); !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) || !strings.HasPrefix(err.Error(), "t:") {
					t.Errorf("%s, %s: after %d of %d bytes: %v", format, name, cut, len(whole), err)
				}
				from, err := open(whole[:cut])
				if err != nil {
					continue
				}
				if _, err = Collect(SkipInvalid(from, func(e *Error) { t.Errorf("%s, %s: %d bytes: dropped %v", format, name, cut, e) })); err == nil {
					t.Errorf("%s, %s: %d of %d bytes are taken for a whole file", format, name, cut, len(whole))
				}
			}
		}
		damaged := []byte(whole)
		damaged[len(damaged)-6] ^= 1 // of the checksum
		if _, err := Read(bytes.NewReader(damaged), "t"); err == nil || !strings.HasPrefix(err.Error(), "t:") {
			t.Errorf("%s: a wrong checksum gives %v", format, err)
		}
	}
}

// firstError returns the first error of a source, nil at its end.
func firstError(from Source, err error) error {
	if err == nil {
		_, err = Collect(from)
	}
	return err
}
