package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// variable is a reference to an environment variable.
var variable = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// referable matches the variables that a file may refer to: those of a Pod, and those meant for fleet files. Others may
// be secrets, and the values of a fleet file appear in status, logs and metrics.
var referable = regexp.MustCompile(`^(CASCADE_|POD_|NODE_|CONTROL_SERVICE_IP$)`)

// plainValue is what a variable may hold: host names, IP addresses, ports, paths and URLs. It
// has nothing that ends a YAML scalar, so that a value cannot become a second field.
var plainValue = regexp.MustCompile(`^[A-Za-z0-9._:/@%+-]{1,1000}$`)

// expandEnvironment replaces each ${NAME} outside comment lines by the variable that lookup returns.
// Lines keep their numbers. It also returns the values that it has inserted.
func expandEnvironment(data []byte, lookup func(name string) (string, bool)) ([]byte, environment, error) {
	if !bytes.Contains(data, []byte("${")) {
		return data, nil, nil
	}
	env := make(environment)
	lines := bytes.Split(data, []byte("\n"))
	for i, line := range lines {
		if bytes.HasPrefix(bytes.TrimSpace(line), []byte("#")) {
			continue
		}
		var err error
		lines[i] = variable.ReplaceAllFunc(line, func(reference []byte) []byte {
			name := string(reference[2 : len(reference)-1])
			value, ok := lookup(name)
			switch {
			case !referable.MatchString(name):
				err = fmt.Errorf("line %d: ${%s}: a fleet file may refer to variables whose names begin with CASCADE_, POD_ or NODE_ only: set one to the value, unless it is a secret", i+1, name)
			case !ok:
				err = fmt.Errorf("line %d: ${%s}: the environment variable is not set", i+1, name)
			case !plainValue.MatchString(value):
				err = fmt.Errorf("line %d: ${%s}: the value may have letters, digits and . _ : / @ %% + - only, and at most 1000 of them", i+1, name)
			}
			env[value] = string(reference)
			return []byte(value)
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return bytes.Join(lines, []byte("\n")), env, nil
}

// environment maps each value in a text to its reference, such as ${NAME}.
type environment map[string]string

// The lengths of the shortest value, and of the shortest part of one, that hide replaces.
const (
	leastHidden     = 4
	leastPartHidden = 8
)

// hide returns err with references in place of their values. It also replaces a value whose end a message has cut off.
func (env environment) hide(err error) error {
	if err == nil || len(env) == 0 {
		return err
	}
	var parts []string // each followed by its reference, the longest first: a Replacer takes the first that matches
	for _, value := range slices.SortedFunc(maps.Keys(env), func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) }) {
		for n := len(value); n >= leastHidden && (n == len(value) || n >= leastPartHidden); n-- {
			parts = append(parts, value[:n], env[value])
		}
	}
	replacer := strings.NewReplacer(parts...)
	all := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all = slices.Clone(joined.Unwrap())
	}
	for i, e := range all {
		if f, ok := e.(*FieldError); ok {
			all[i] = &FieldError{Path: replacer.Replace(f.Path), Line: f.Line, Msg: replacer.Replace(f.Msg)}
		} else {
			all[i] = errors.New(replacer.Replace(e.Error()))
		}
	}
	return errors.Join(all...)
}
