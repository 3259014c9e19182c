package config

import (
	"bytes"
	"fmt"
	"regexp"
)

// variable is a reference to an environment variable.
var variable = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// plainValue is what a variable may hold: host names, IP addresses, ports, paths and URLs. It
// has nothing that ends a YAML scalar, so that a value cannot become a second field.
var plainValue = regexp.MustCompile(`^[A-Za-z0-9._:/@%+-]{1,1000}$`)

// expandEnvironment replaces each ${NAME} outside comment lines by the variable that lookup returns.
// Lines keep their numbers.
func expandEnvironment(data []byte, lookup func(name string) (string, bool)) ([]byte, error) {
	if !bytes.Contains(data, []byte("${")) {
		return data, nil
	}
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
			case !ok:
				err = fmt.Errorf("line %d: ${%s}: the environment variable is not set", i+1, name)
			case !plainValue.MatchString(value):
				err = fmt.Errorf("line %d: ${%s}: %q: may have letters, digits and . _ : / @ %% + - only, and at most 1000 of them", i+1, name, value)
			}
			return []byte(value)
		})
		if err != nil {
			return nil, err
		}
	}
	return bytes.Join(lines, []byte("\n")), nil
}
