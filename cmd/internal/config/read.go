package config

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// maxFile bounds a configuration file: 10,000 replicas take about 2 MiB.
const maxFile = 16 << 20

// A FieldError is a value that decodes and is not allowed.
type FieldError struct {
	Path string // YAML path of the field, for instance replicas[2].address
	Line int    // 1-based, 0 when unknown
	Msg  string // what is wrong and what to write instead
}

// Error names the place and the mend.
func (e *FieldError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("line %d: %s: %s", e.Line, e.Path, e.Msg)
	}
	return e.Path + ": " + e.Msg
}

// Load reads the file at path. Errors carry the path, the line and the field.
func Load(path string) (Fleet, error) {
	f, err := os.Open(path)
	if err != nil {
		return Fleet{}, err
	}
	defer f.Close()
	fleet, err := Read(f)
	if err != nil {
		return Fleet{}, fmt.Errorf("%s: %w", path, err)
	}
	return fleet, nil
}

// Read decodes, fills defaults and validates. It reports every bad field, not
// only the first.
func Read(r io.Reader) (Fleet, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return Fleet{}, err
	}
	if len(data) > maxFile {
		return Fleet{}, fmt.Errorf("larger than %d MiB", maxFile>>20)
	}
	var fleet Fleet
	if err := yaml.UnmarshalWithOptions(data, &fleet, yaml.Strict()); err != nil {
		return Fleet{}, errors.New(yaml.FormatError(err, false, true))
	}
	fleet.setDefaults()
	if errs := fleet.validate(); len(errs) > 0 {
		return Fleet{}, errors.Join(locateErrors(data, errs)...)
	}
	return fleet, nil
}

// LocateErrors is the error of fields of the file at path that decode and are allowed, and
// are found to be of no use all the same; nil where there are none. It has their lines.
func LocateErrors(path string, bad []*FieldError) error {
	if len(bad) == 0 {
		return nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return fmt.Errorf("%s: %w", path, errors.Join(locateErrors(data, bad)...))
}

// locateErrors adds line numbers to field errors.
func locateErrors(data []byte, errs []*FieldError) []error {
	file, err := parser.ParseBytes(data, 0)
	out := make([]error, len(errs))
	for i, e := range errs {
		if err == nil {
			e.Line = findLine(file, e.Path)
		}
		out[i] = e
	}
	return out
}

// findLine finds the field, or the nearest parent that is written in the file.
func findLine(file *ast.File, path string) int {
	for p := path; p != ""; p = parentPath(p) {
		q, err := yaml.PathString("$." + p)
		if err != nil {
			continue
		}
		if node, err := q.FilterFile(file); err == nil && node != nil {
			return node.GetToken().Position.Line
		}
	}
	return 0
}

// parentPath cuts the last .name or [index] off a path.
func parentPath(path string) string {
	for i := len(path) - 1; i > 0; i-- {
		if path[i] == '.' || path[i] == '[' {
			return path[:i]
		}
	}
	return ""
}
