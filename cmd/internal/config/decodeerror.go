package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/printer"
)

// maxNear is how many fields a message suggests.
const maxNear = 3

// describeDecoding returns an error of the decoder in the terms of the fleet file: with the line, with what
// the field must be in place of a type of Go's, with the fields that a misspelt one resembles, and
// with the lines around it.
func describeDecoding(err error) error {
	var at yaml.Error
	if !errors.As(err, &at) || at.GetToken() == nil {
		return errors.New(yaml.FormatError(err, false, true))
	}
	token := at.GetToken()
	msg := at.GetMessage()
	var wrong *yaml.TypeError
	var other *yaml.UnexpectedNodeTypeError
	var unknown *yaml.UnknownFieldError
	switch {
	case errors.As(err, &wrong) && typeNoun(wrong.DstType) != "":
		msg = "must be " + typeNoun(wrong.DstType)
	case errors.As(err, &other) && other.Expected == ast.SequenceType:
		msg = "must be a list"
	case errors.As(err, &other) && other.Expected == ast.MappingType:
		msg = "must have fields"
	case errors.As(err, &unknown):
		msg += "; " + suggest(token.Value)
	}
	if strings.HasPrefix(msg, "must ") && !strings.Contains("[]{}-:", token.Value) {
		msg = fmt.Sprintf("%q: %s", token.Value, msg)
	}
	var lines printer.Printer
	return fmt.Errorf("line %d: %s\n%s", token.Position.Line, msg, strings.TrimRight(lines.PrintErrorToken(token, false), "\n"))
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
	case t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64:
		return "a whole number"
	}
	return ""
}

// suggest names the fields whose last name resembles a name, or says where all are listed.
func suggest(name string) string {
	var near []string
	for _, f := range Fields() {
		if last := f.Path[strings.LastIndexByte(f.Path, '.')+1:]; resembles(name, last) && !slices.Contains(near, f.Path) {
			near = append(near, f.Path)
		}
	}
	if len(near) == 0 || len(near) > maxNear {
		return "\"cascade config explain\" lists all fields"
	}
	return "did you mean " + strings.Join(near, " or ") + "?"
}

// resembles reports whether two names differ by at most one edit for every three letters.
func resembles(a, b string) bool {
	return edits(a, b) <= min(len(a), len(b))/3
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
