package policydev

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/cascadeinfer/cascade/internal/atomicfile"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

// SignatureSuffix is added to a module's name for its signature file.
const SignatureSuffix = ".sig"

// NotDecidedError is the error for a kind that a module was to decide and does not export.
type NotDecidedError struct{ Path, Kind string }

// Error implements error.
func (e *NotDecidedError) Error() string { return fmt.Sprintf("%s does not decide %q", e.Path, e.Kind) }

// ReadSignature reads a signature file.
func ReadSignature(path string) (sign.File, error) {
	text, err := atomicfile.Read(path, sign.MaxFile)
	if err != nil {
		return sign.File{}, err
	}
	f, err := sign.Decode(text)
	if err != nil {
		return f, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// Grants returns what a module may decide, in the order of the protocol: the given kinds, or all that it exports, with
// the limits of their calls. configured says that it gets a configuration, which it must be able to take. The error is
// a NotDecidedError for kinds and limits of others.
func Grants(ctx context.Context, path string, kinds []string, limits map[string]sign.Grant, configured bool) ([]sign.Grant, error) {
	in, err := Inspect(ctx, path)
	if err == nil {
		err = in.Err()
	}
	if err != nil {
		return nil, err
	}
	var exported []string
	for _, k := range in.Kinds {
		exported = append(exported, k.Kind)
	}
	if configured && !slices.Contains(exported, abi.Configure.String()) {
		return nil, fmt.Errorf("%s does not export %s, and hosts would reject it with a configuration: sign it without",
			path, abi.Configure.Export())
	}
	exported = slices.DeleteFunc(exported, func(k string) bool { return k == abi.Configure.String() })
	if len(kinds) == 0 {
		kinds = exported
	}
	for _, k := range kinds {
		if !slices.Contains(exported, k) {
			return nil, &NotDecidedError{path, k}
		}
	}
	for k := range maps.Keys(limits) {
		if !slices.Contains(kinds, k) {
			return nil, &NotDecidedError{path, k}
		}
	}
	var grants []sign.Grant
	for k := abi.Configure + 1; k < abi.NumKinds; k++ {
		if slices.Contains(kinds, k.String()) {
			g := limits[k.String()]
			g.Kind = k
			grants = append(grants, g)
		}
	}
	return grants, nil
}
