package config

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/printer"
)

// Bounds of a message. A fleet file may be large, and a value may be a certificate that was pasted into it.
const (
	maxNear  = 3   // fields that are suggested
	maxLines = 20  // lines, with those of the file
	maxLine  = 512 // bytes of a line
)

// describeDecoding returns an error of the decoder in the terms of the fleet file: with the line, with what
// the field must be in place of a type of Go's, with the fields that a misspelt one resembles, and
// with the lines around it.
func describeDecoding(err error) error {
	var at yaml.Error
	if !errors.As(err, &at) || at.GetToken() == nil {
		return errors.New(shorten(yaml.FormatError(err, false, true)))
	}
	token := at.GetToken()
	msg := at.GetMessage()
	var wrong *yaml.TypeError
	var outside *yaml.OverflowError
	var other *yaml.UnexpectedNodeTypeError
	var unknown *yaml.UnknownFieldError
	switch {
	case errors.As(err, &wrong) && typeNoun(wrong.DstType) != "":
		msg = "must be " + typeNoun(wrong.DstType)
	case errors.As(err, &outside):
		msg = "must be " + integerRange(outside.DstType)
	case errors.As(err, &other) && other.Expected == ast.SequenceType:
		msg = "must be a list"
	case errors.As(err, &other) && other.Expected == ast.MappingType:
		msg = "must have fields"
	case errors.As(err, &unknown):
		msg = fmt.Sprintf("unknown field %.40q; %s", token.Value, suggest(token.Value))
	}
	if strings.HasPrefix(msg, "must ") && !strings.Contains("[]{}-:", token.Value) {
		msg = fmt.Sprintf("%.40q: %s", token.Value, msg)
	}
	var lines printer.Printer
	excerpt := strings.TrimRight(lines.PrintErrorToken(token, false), "\n")
	return errors.New(shorten(fmt.Sprintf("line %d: %s\n%s", token.Position.Line, msg, excerpt)))
}

// shorten returns the first lines of a text, and of each the beginning.
func shorten(text string) string {
	lines := strings.SplitN(text, "\n", maxLines+1)
	if len(lines) > maxLines {
		lines[maxLines] = "…"
	}
	for i, line := range lines {
		if len(line) > maxLine {
			lines[i] = strings.ToValidUTF8(line[:maxLine], "") + "…"
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

// suggest names the fields whose last name is a name, else those whose last name resembles it, or says
// where all are listed.
func suggest(name string) string {
	var same, near []string
	for _, f := range Fields() {
		switch last := f.Path[strings.LastIndexByte(f.Path, '.')+1:]; {
		case last == name:
			same = append(same, f.Path)
		case resembles(name, last):
			near = append(near, f.Path)
		}
	}
	if len(same) > 0 {
		near = same
	}
	if len(near) == 0 || len(near) > maxNear {
		return "\"cascade config explain\" lists all fields"
	}
	return "did you mean " + strings.Join(near, " or ") + "?"
}

// resembles reports whether two names differ by at most one edit for every three bytes of the shorter one.
func resembles(a, b string) bool {
	most := min(len(a), len(b)) / 3
	return max(len(a), len(b))-min(len(a), len(b)) <= most && edits(a, b) <= most // the first is cheap for long names
}

// edits returns the number of bytes to insert, remove or replace that make b of a.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
