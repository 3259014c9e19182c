package configure

import (
	"strconv"
	"strings"
)

// Field is a setting and the function that sets it.
type Field struct {
	Name string
	// Set sets the value. It is not called if the configuration lacks the setting.
	Set func(int64)
	// Low and High are the minimum and the maximum.
	Low, High int64
}

// LineError is an invalid line, counted from 1, and the reason.
type LineError struct {
	Line   int
	Reason string
}

// LineError returns "line 3: reason".
func (e *LineError) Error() string { return "line " + strconv.Itoa(e.Line) + ": " + e.Reason }

// ReadSettings parses a configuration of whole numbers, the format of the built-in policies: lines "name value", in any
// order. A "#" begins a comment. An author may choose any other format; this one adds no megabyte of parser to the
// module. It sets the fields that a configuration has. If a line is invalid, names no field or
// repeats one, Read sets nothing and returns an *Error.
func ReadSettings(config []byte, fields ...Field) error {
	values := make([]int64, len(fields))
	seen := make([]bool, len(fields))
	for n, line := range strings.Split(string(config), "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		fail := func(reason string) error { return &LineError{n + 1, reason} }
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
			return fail(strconv.Quote(words[0]) + ": unknown setting")
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
