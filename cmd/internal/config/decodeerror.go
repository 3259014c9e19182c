package config

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/printer"

	"github.com/cascadeinfer/cascade/internal/cleantext"
)

// Limits of a message. A fleet file may be large, and a value may be a certificate that was pasted into it.
const (
	maxSuggestions  = 3   // fields that are suggested
	maxMessageLines = 20  // lines of the message, with those of the file that it shows
	maxLineBytes    = 512 // bytes of each of them
)

// describeDecoding returns an error of the decoder in the terms of the fleet file. It has the line, says what
// the value must be where the decoder names a type of Go's, suggests fields for a misspelt one, and ends
// with the lines of the file around it.
func describeDecoding(err error) error {
	var yamlErr yaml.Error
	if !errors.As(err, &yamlErr) || yamlErr.GetToken() == nil {
		return errors.New(shorten(yaml.FormatError(err, false, true)))
	}
	token := yamlErr.GetToken()
	msg := yamlErr.GetMessage()
	var typeErr *yaml.TypeError
	var overflowErr *yaml.OverflowError
	var nodeErr *yaml.UnexpectedNodeTypeError
	var unknownField *yaml.UnknownFieldError
	switch {
	case errors.As(err, &typeErr) && typeNoun(typeErr.DstType) != "":
		msg = "must be " + typeNoun(typeErr.DstType)
	case errors.As(err, &overflowErr):
		msg = "must be " + integerRange(overflowErr.DstType)
	case errors.As(err, &nodeErr) && nodeErr.Expected == ast.SequenceType:
		msg = "must be a list"
	case errors.As(err, &nodeErr) && nodeErr.Expected == ast.MappingType:
		msg = "must have fields"
	case errors.As(err, &unknownField):
		msg = fmt.Sprintf("unknown field %.40q; %s", token.Value, suggest(token.Value, token.Position.Column == 1))
	}
	if strings.HasPrefix(msg, "must ") && !strings.Contains("[]{}-:", token.Value) {
		msg = fmt.Sprintf("%.40q: %s", token.Value, msg)
	}
	var lines printer.Printer
	excerpt := strings.TrimRight(lines.PrintErrorToken(token, false), "\n")
	return errors.New(shorten(fmt.Sprintf("line %d: %s\n%s", token.Position.Line, msg, excerpt)))
}

// shorten cuts a text to maxMessageLines lines, and each line to maxLineBytes bytes. Where it has cut is "…".
func shorten(text string) string {
	lines := strings.SplitN(text, "\n", maxMessageLines+1)
	if len(lines) > maxMessageLines {
		lines[maxMessageLines] = "…"
	}
	for i, line := range lines {
		if len(line) > maxLineBytes {
			lines[i] = cleantext.Truncate(line, maxLineBytes) + "…"
		}
	}
	return strings.Join(lines, "\n")
}

// typeNoun returns what a value of a type has to be in the file, "" for types that are not scalars.
func typeNoun(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "a duration, such as 10s or 1m30s"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.String:
		return "text"
	case t.Kind() == reflect.Float64:
		return "a number"
	case t.Kind() >= reflect.Int && t.Kind() <= reflect.Int64:
		return "a whole number"
	case t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uint64:
		return "a whole number, not negative"
	}
	return ""
}

// integerRange returns what a value of an integer type has to be in the file, with the least and the
// largest that the type holds.
func integerRange(t reflect.Type) string {
	least, most := int64(0), uint64(math.MaxUint64)>>(64-t.Bits())
	if t.Kind() <= reflect.Int64 {
		most >>= 1
		least = -int64(most) - 1
	}
	return fmt.Sprintf("a whole number from %d to %d", least, most)
}

// suggest returns what to do about an unknown field. It names the fields whose last name is the same or, if there
// is none, resembles it. If that leaves none, or more than maxSuggestions, it names the command that lists all. For a
// field at the top of the file, fields that are there come first.
func suggest(name string, top bool) string {
	var same, near, atTop []string
	for _, f := range Fields() {
		switch last := f.Path[strings.LastIndexByte(f.Path, '.')+1:]; {
		case last == name:
			same = append(same, f.Path)
		case resembles(name, last):
			near = append(near, f.Path)
			if last == f.Path {
				atTop = append(atTop, f.Path)
			}
		}
	}
	switch {
	case len(same) > 0:
		near = same
	case top && len(atTop) > 0:
		near = atTop
	}
	if len(near) == 0 || len(near) > maxSuggestions {
		return "\"cascade config explain\" lists all fields"
	}
	return "did you mean " + strings.Join(near, " or ") + "?"
}

// resembles reports whether two names differ by at most one edit for every three bytes of the shorter one.
func resembles(a, b string) bool {
	most := min(len(a), len(b)) / 3
	// The first is cheap for long names.
	return max(len(a), len(b))-min(len(a), len(b)) <= most && levenshtein.ComputeDistance(a, b) <= most
}
