package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/cascadeinfer/cascade/internal/atomicfile"
)

// maxFile bounds a configuration file: 10,000 replicas take about 2 MiB.
const maxFile = 16 << 20

// A FieldError reports a value that decodes and is not allowed.
type FieldError struct {
	Path string // YAML path of the field, for instance replicas[2].address
	Line int    // 1-based, 0 when unknown
	Msg  string // what is wrong and what to write instead
}

// Error returns the line, the field, and what is wrong with it.
func (e *FieldError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("line %d: %s: %s", e.Line, e.Path, e.Msg)
	}
	return e.Path + ": " + e.Msg
}

// Load reads the file at path, in which ${NAME} stands for the environment variable NAME. Errors name
// the path, the line and the field.
func Load(path string) (Fleet, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return Fleet{}, fmt.Errorf("%w; \"cascade config explain --example\" prints a fleet file to start from", err)
	}
	if err != nil {
		return Fleet{}, err
	}
	defer f.Close()
	data, err := atomicfile.ReadAll(f, maxFile)
	if err != nil {
		return Fleet{}, fmt.Errorf("%s: %w", path, err)
	}
	fleet, err := ReadText(data)
	if err != nil {
		return Fleet{}, fmt.Errorf("%s: %w", path, err)
	}
	return fleet, nil
}

// ReadText is Read for the text of a file, in which ${NAME} stands for the environment variable NAME. Errors do not
// contain the variables' values.
func ReadText(data []byte) (Fleet, error) {
	data, env, err := expandEnvironment(data, os.LookupEnv)
	if err != nil {
		return Fleet{}, err
	}
	fleet, err := Read(bytes.NewReader(data))
	return fleet, env.hide(err)
}

// Read decodes a fleet file, fills in the defaults and validates it. It reports
// every invalid field, not only the first.
func Read(r io.Reader) (Fleet, error) {
	data, err := atomicfile.ReadAll(r, maxFile)
	if err != nil {
		return Fleet{}, err
	}
	fleet, err := decode(data)
	if err != nil {
		return Fleet{}, err
	}
	fleet.setDefaults()
	if errs := fleet.validate(); len(errs) > 0 {
		return Fleet{}, errors.Join(locateErrors(data, errs)...)
	}
	return fleet, nil
}

// decode decodes a fleet file, without its defaults.
func decode(data []byte) (fleet Fleet, err error) {
	if err := checkSingleDocument(data); err != nil {
		return Fleet{}, err
	}
	if err := yaml.UnmarshalWithOptions(data, &fleet, yaml.Strict()); err != nil {
		return Fleet{}, describeDecoding(err)
	}
	return fleet, nil
}

// checkSingleDocument returns an error for a file with a second document, which the decoder would ignore.
func checkSingleDocument(data []byte) error {
	if !bytes.Contains(data, []byte("\n---")) {
		return nil // no need to parse it
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil // the decoder reports it
	}
	documents := slices.DeleteFunc(file.Docs, func(d *ast.DocumentNode) bool { return d.Body == nil || d.Body.Type() == ast.NullType })
	if len(documents) > 1 {
		return fmt.Errorf("line %d: a second document begins here, and a fleet file is one: remove the line \"---\", or the document",
			documents[1].Body.GetToken().Position.Line)
	}
	return nil
}

// LocateErrors returns an error that joins the errors of fields of the file at
// path, with their lines; nil for no errors. It is for fields that are valid by
// themselves, and turn out to be unusable.
func LocateErrors(path string, bad []*FieldError) error {
	if len(bad) == 0 {
		return nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	_, env, _ := expandEnvironment(data, os.LookupEnv) // it has been read without an error before
	return fmt.Errorf("%s: %w", path, env.hide(errors.Join(locateErrors(data, bad)...)))
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

// findLine returns the line of the field, or of its nearest parent that is in the
// file.
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

// parentPath returns path without its last .name or [index].
func parentPath(path string) string {
	for i := len(path) - 1; i > 0; i-- {
		if path[i] == '.' || path[i] == '[' {
			return path[:i]
		}
	}
	return ""
}

// ReadBase decodes a fleet file that another program completes with replicas: it must
// have none, and is valid but for them. ${NAME} stands for the environment variable NAME, as in
// the complete file. Defaults are not filled in.
func ReadBase(data []byte) (fleet Fleet, err error) {
	if len(data) > maxFile {
		return Fleet{}, fmt.Errorf("larger than %d MiB", maxFile>>20)
	}
	data, env, err := expandEnvironment(data, os.LookupEnv)
	if err != nil {
		return Fleet{}, err
	}
	defer func() { err = env.hide(err) }()
	if fleet, err = decode(data); err != nil {
		return Fleet{}, err
	}
	if fleet.Replicas != nil {
		return Fleet{}, errors.Join(locateErrors(data, []*FieldError{{Path: "replicas", Msg: "must be absent: the replicas are discovered"}})...)
	}
	filled := fleet
	filled.Models = slices.Clone(fleet.Models)
	errs := slices.DeleteFunc(filled.Validate(), func(e *FieldError) bool { return e.Path == "replicas" })
	if len(errs) > 0 {
		return Fleet{}, errors.Join(locateErrors(data, errs)...)
	}
	return fleet, nil
}
