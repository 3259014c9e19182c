package main

import (
	"fmt"

	"github.com/goccy/go-yaml"

	"github.com/cascadeinfer/cascade/internal/atomicfile"
)

// The plugins of the reference picker that the conformance suite configures.
const (
	testFilter     = "header-based-testing-filter"
	servedVerifier = "destination-endpoint-served-verifier"
)

// maxPickerConfig bounds a reference picker's configuration, in bytes.
const maxPickerConfig = 1 << 20

// readsTestHeaders reports whether a reference picker's configuration, if path is not "", has both
// plugins of the conformance suite. One alone is refused: the picker obeys all headers of the suite
// or none.
func readsTestHeaders(path string) (bool, error) {
	if path == "" {
		return false, nil
	}
	text, err := atomicfile.Read(path, maxPickerConfig)
	if err != nil {
		return false, fmt.Errorf("--config-file: %w", err)
	}
	return parseTestHeaders(path, text)
}

func parseTestHeaders(path string, text []byte) (bool, error) {
	var file struct {
		Plugins []struct{ Type string }
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return false, fmt.Errorf("--config-file %s: %w", path, err)
	}
	has := map[string]bool{}
	for _, p := range file.Plugins {
		has[p.Type] = true
	}
	if has[testFilter] != has[servedVerifier] {
		return false, fmt.Errorf("--config-file %s: has one of the plugins %s and %s: use both, for the conformance suite, or none", path, testFilter, servedVerifier)
	}
	return has[testFilter], nil
}
