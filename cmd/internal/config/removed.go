package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// removedFields are fields that the fleet file no longer has, with the reason.
// RATIONALE.md ("Why are some numbers no fields of the fleet file?") says more.
var removedFields = map[string]string{
	"planner.stages":            "the planner finds the number of stages, up to 8",
	"planner.pooling":           "the head room of small stages is always 0.3",
	"migration.select":          "the preset selects the bid",
	"migration.sample":          "8 replicas are asked for a bid, and all with preset paper",
	"migration.outlier_percent": "a replica sells requests when it is 25 % above the mean load of its stage",
	"policies.instances":        "a process keeps one instance of a module per replica and one more, up to the number of processors",
	"policies.cache_mib":        "the cache of machine code is bounded to 512 MiB",
	"policies.cache_modules":    "the cache of machine code is bounded to 64 modules",
	"policies.modules":          "control planes keep pushed modules in state",
	"policies.gates.patience":   "a step of a canary waits 2m for its calls, divided by speed",
	"policies.gates.faults":     "3 faults within 10 s roll an active module back",
	"policies.gates.window":     "3 faults within 10 s roll an active module back",
}

// checkRemoved returns an error for every removed field that the file still has.
func checkRemoved(data []byte) error {
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil // the decoder reports it
	}
	var errs []error
	for _, path := range slices.Sorted(maps.Keys(removedFields)) {
		q, err := yaml.PathString("$." + path)
		if err != nil {
			return fmt.Errorf("internal error: removed field %s: %w", path, err)
		}
		node, err := q.FilterFile(file)
		if err != nil || node == nil {
			continue
		}
		errs = append(errs, &FieldError{Path: path, Line: keyLine(path, node), Msg: "this field was removed: " + removedFields[path] + "; delete it"})
	}
	return errors.Join(errs...)
}

// keyLine returns the line of the key whose value is node.
func keyLine(path string, node ast.Node) int {
	line := node.GetToken().Position.Line
	key := path[strings.LastIndexByte(path, '.')+1:]
	for t := node.GetToken(); t != nil && t.Position != nil; t = t.Prev {
		if t.Value == key {
			return t.Position.Line
		}
	}
	return line
}
