// Package settings reads configurations of whole numbers, which is what our own
// policies have: a line "name value" each, in any order. A "#" begins a comment.
// An author may choose any other format; this one needs no parser of a megabyte.
package settings

import (
	"strconv"
	"strings"
)

// Field is a setting and where its value goes.
type Field struct {
	Name string
	// Set takes the value, and is not called for a setting that is not there.
	Set func(int64)
	// Low and High are the least and the largest value.
	Low, High int64
}

// Error says which line is wrong, counted from 1, and why.
type Error struct {
	Line   int
	Reason string
}

// Error is "line 3: reason".
func (e *Error) Error() string { return "line " + strconv.Itoa(e.Line) + ": " + e.Reason }

// Read sets the fields that a configuration names. Nothing is set when a line is
// wrong, names no field, or names one twice; the error is an *Error.
func Read(config []byte, fields ...Field) error {
	values := make([]int64, len(fields))
	seen := make([]bool, len(fields))
	for n, line := range strings.Split(string(config), "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		fail := func(reason string) error { return &Error{n + 1, reason} }
		if len(words) != 2 {
			return fail(`want "name value"`)
		}
		at := -1
		for i := range fields {
			if fields[i].Name == words[0] {
				at = i
			}
		}
		if at < 0 {
			return fail("no setting is called " + strconv.Quote(words[0]))
		}
		v, err := strconv.ParseInt(words[1], 10, 64)
		f := &fields[at]
		switch {
		case seen[at]:
			return fail(f.Name + " is set twice")
		case err != nil || v < f.Low || v > f.High:
			return fail(f.Name + " must be a whole number from " + strconv.FormatInt(f.Low, 10) + " to " + strconv.FormatInt(f.High, 10))
		}
		values[at], seen[at] = v, true
	}
	for i := range fields {
		if seen[i] {
			fields[i].Set(values[i])
		}
	}
	return nil
}
