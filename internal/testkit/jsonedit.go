package testkit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// EditMessage and EditStruct change single values by their paths in JSON, so that test scenarios can say which field is
// wrong.
//
// A path is the keys and list indices from the root, separated by slashes. The index
// after the last one appends. An edit is one line:
//
//	path = JSON         sets a value; "x"*9 is a string of nine x
//	path = @other       copies the value of another path
//	delete path         removes a key or an element
//	swap path other     exchanges two values
//	in path             the paths of the lines below begin there

// EditMessage returns a copy of a message with the edits applied. Its paths are those of
// protojson with the field names of the .proto file.
func EditMessage[M proto.Message](m M, edits ...string) (M, error) {
	doc, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return m, err
	}
	if doc, err = apply(doc, edits); err != nil {
		return m, err
	}
	out := m.ProtoReflect().New().Interface().(M)
	return out, protojson.Unmarshal(doc, out)
}

// EditStruct returns a deep copy of a struct with the edits applied, by its form in
// encoding/json.
func EditStruct[T any](v T, edits ...string) (out T, err error) {
	doc, err := json.Marshal(v)
	if err != nil {
		return out, err
	}
	if doc, err = apply(doc, edits); err != nil {
		return out, err
	}
	err = json.Unmarshal(doc, &out)
	return out, err
}

func apply(doc []byte, edits []string) ([]byte, error) {
	var root any
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	if err := dec.Decode(&root); err != nil {
		return nil, err
	}
	e := editor{root: root}
	for _, line := range edits {
		if err := e.edit(line); err != nil {
			return nil, fmt.Errorf("%s: %w", line, err)
		}
	}
	return json.Marshal(e.root)
}

// editor is a decoded document.
type editor struct {
	root any
	base string // where paths begin; empty, or ends in a slash
}

func (e *editor) edit(line string) error {
	command, paths, _ := strings.Cut(line, " ")
	switch command {
	case "in":
		e.base = paths + "/"
		return nil
	case "delete":
		return e.set(paths, nil, true)
	case "swap":
		a, b, _ := strings.Cut(paths, " ")
		first, err := e.get(a)
		if err != nil {
			return err
		}
		second, err := e.get(b)
		return errors.Join(err, e.set(a, second, false), e.set(b, first, false))
	}
	path, text, ok := strings.Cut(line, " = ")
	if !ok {
		return errors.New("no edit")
	}
	value, err := e.parse(text)
	if err != nil {
		return err
	}
	return e.set(path, value, false)
}

// parse reads the right side of an assignment.
func (e *editor) parse(text string) (value any, err error) {
	if path, ok := strings.CutPrefix(text, "@"); ok {
		value, err = e.get(path)
		copied, _ := json.Marshal(value) // it was decoded from JSON
		text = string(copied)
	}
	if unit, count, ok := strings.Cut(text, `"*`); ok {
		n, err := strconv.Atoi(count)
		return strings.Repeat(unit[1:], n), err
	}
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	err = errors.Join(err, dec.Decode(&value))
	return value, err
}

func (e *editor) get(path string) (node any, err error) {
	node = e.root
	for key := range strings.SplitSeq(e.base+path, "/") {
		switch n := node.(type) {
		case map[string]any:
			node = n[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i >= len(n) {
				return nil, fmt.Errorf("no element %q", key)
			}
			node = n[i]
		default:
			return nil, fmt.Errorf("nothing is at %q", key)
		}
	}
	return node, nil
}

func (e *editor) set(path string, value any, remove bool) (err error) {
	e.root, err = set(e.root, strings.Split(e.base+path, "/"), value, remove)
	return err
}

// set returns the node with the value at the path, or without the path if remove is set.
func set(node any, path []string, value any, remove bool) (any, error) {
	if len(path) == 0 {
		return value, nil
	}
	key, last := path[0], len(path) == 1
	switch n := node.(type) {
	case nil:
		child, err := set(nil, path[1:], value, remove)
		return map[string]any{key: child}, err
	case map[string]any:
		if last && remove {
			if _, ok := n[key]; !ok {
				return nil, fmt.Errorf("no field %q", key)
			}
			delete(n, key)
			return n, nil
		}
		child, err := set(n[key], path[1:], value, remove)
		n[key] = child
		return n, err
	case []any:
		i, err := strconv.Atoi(key)
		if err != nil || i > len(n) || i == len(n) && remove {
			return nil, fmt.Errorf("no element %q", key)
		}
		if last && remove {
			return slices.Delete(n, i, i+1), nil
		}
		if i == len(n) {
			n = append(n, nil)
		}
		n[i], err = set(n[i], path[1:], value, remove)
		return n, err
	}
	return nil, fmt.Errorf("nothing is at %q", key)
}
