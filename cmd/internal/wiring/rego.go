package wiring

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/cascadeinfer/cascade/internal/atomicfile"
)

// maxRegoFile bounds a file of rules or of their data, in bytes.
const maxRegoFile = 1 << 20

// RegoRules is the site's rules in Rego and their data.
type RegoRules struct {
	Files map[string]string // source texts by path
	Data  map[string]any
}

// RegoRules reads the site's rules; it returns none where the fleet has none.
func (f *Fleet) RegoRules() (RegoRules, error) {
	s := RegoRules{Files: map[string]string{}}
	for i, name := range f.Fleet.Policies.Rules {
		if err := s.read(f.resolvePath(name)); err != nil {
			return s, fmt.Errorf("policies.rules[%d]: %w", i, err)
		}
	}
	return s, nil
}

// read adds a file of rules or, with the suffix .json, of their data; or the Rego files of a directory except their
// tests.
func (s *RegoRules) read(path string) (err error) {
	if strings.HasSuffix(path, ".json") {
		if s.Data != nil {
			return errors.New(path + ": a second file of data; merge the two")
		}
		s.Data, err = readData(path)
		return err
	}
	found := false
	err = filepath.WalkDir(path, func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if at != path && (!strings.HasSuffix(at, ".rego") || strings.HasSuffix(at, "_test.rego")) {
			return nil
		}
		text, err := atomicfile.Read(at, maxRegoFile)
		if err != nil {
			return err
		}
		s.Files[at], found = string(text), true
		return nil
	})
	if err == nil && !found {
		err = errors.New(path + ": no .rego file in this directory")
	}
	return err
}

// readData reads the data of rules.
func readData(path string) (data map[string]any, err error) {
	text, err := atomicfile.Read(path, maxRegoFile)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &data); err != nil {
		return nil, fmt.Errorf("%s: not a JSON object: %w", path, err)
	}
	return data, nil
}
