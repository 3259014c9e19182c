// Package regomodule compiles rules of cascade.plan into WebAssembly, for hosts that
// run them as a guard (package host/opa). It uses OPA's own compiler and does not change
// its output: a module of "opa build -t wasm" works as well.
//
// It is for authors and tests; no daemon links it.
package regomodule

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/compile"

	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/opa"
	"github.com/cascadeinfer/cascade/wasm/internal/regodocument"
	"github.com/cascadeinfer/cascade/wasm/rego"
)

// Build compiles rules, by file name, in Rego v1. Rules of other packages are helpers.
// The same rules give the same bytes. It refuses rules that package rego refuses and
// calls of built-in functions that modules do not have; the errors name file and line.
func Build(ctx context.Context, files map[string]string) ([]byte, error) {
	if _, err := rego.New(ctx, rego.Config{Files: files}); err != nil {
		return nil, err
	}
	b := &bundle.Bundle{Data: map[string]any{}}
	sets := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		m, err := ast.ParseModuleWithOpts(name, files[name], ast.ParserOptions{RegoVersion: ast.RegoV1})
		if err != nil {
			return nil, fmt.Errorf("rego: %w", err)
		}
		b.Modules = append(b.Modules, bundle.ModuleFile{URL: name, Path: name, Parsed: m, Raw: []byte(files[name])})
		if m.Package.Path.String() != "data."+regodocument.Package {
			continue
		}
		for _, r := range m.Rules {
			sets[r.Head.Ref()[0].Value.String()] = true
		}
	}
	if !sets[`"deny"`] && !sets["deny"] {
		return nil, fmt.Errorf("rego: no rule \"deny\" in package %s", regodocument.Package)
	}
	entries := []string{regodocument.Deny}
	if sets[`"warn"`] || sets["warn"] {
		entries = append(entries, regodocument.Warn)
	}
	c := compile.New().WithTarget(compile.TargetWasm).WithBundle(b).WithEntrypoints(entries...).WithRegoVersion(ast.RegoV1).WithOutput(new(bytes.Buffer))
	if err := c.Build(ctx); err != nil {
		return nil, fmt.Errorf("rego: %w", err)
	}
	if len(c.Bundle().WasmModules) != 1 {
		return nil, errors.New("internal error: OPA did not make one module")
	}
	code := c.Bundle().WasmModules[0].Raw
	if err := holds(ctx, code, files); err != nil {
		return nil, err
	}
	return code, nil
}

// holds checks that a host can load the module.
func holds(ctx context.Context, code []byte, files map[string]string) error {
	m, err := host.Load(ctx, host.Config{}, code)
	if err == nil {
		return m.Close()
	}
	var missing *opa.Missing
	if !errors.As(err, &missing) {
		return err
	}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if at := uses(ast.MustParseModuleWithOpts(files[file], ast.ParserOptions{RegoVersion: ast.RegoV1}), missing.Functions); at != nil {
			return fmt.Errorf("rego: %s:%d: %w", file, at.Row, missing)
		}
	}
	return err
}

// uses returns the first location where a module calls one of the named functions, or
// nil.
func uses(m *ast.Module, names []string) (at *ast.Location) {
	see := func(operator *ast.Term) {
		if slices.Contains(names, operator.Value.String()) && (at == nil || operator.Location.Row < at.Row) {
			at = operator.Location
		}
	}
	ast.WalkExprs(m, func(e *ast.Expr) bool {
		if e.IsCall() {
			see(e.Terms.([]*ast.Term)[0])
		}
		return false
	})
	ast.WalkTerms(m, func(t *ast.Term) bool {
		if call, ok := t.Value.(ast.Call); ok {
			see(call[0])
		}
		return false
	})
	return at
}
