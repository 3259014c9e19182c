package rego

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/compile"

	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/opa"
)

// Build compiles rules about plans, by file name, in Rego v1, into a module that hosts run as
// a guard. Rules of other packages are helpers. The same rules give the same bytes, which
// are those of OPA's own compiler: a module of "opa build -t wasm" works as well. It refuses
// rules that New refuses; the errors name file and line.
func Build(ctx context.Context, files map[string]string) ([]byte, error) {
	defined, err := check(files)
	if err != nil {
		return nil, err
	}
	if !defined[opa.PlanDeny] {
		return nil, errors.New("rego: no rule \"deny\" in package cascade.plan")
	}
	entries := []string{opa.PlanDeny}
	if defined[opa.PlanWarn] {
		entries = append(entries, opa.PlanWarn)
	}
	code, err := compileModule(ctx, files, entries)
	if err != nil {
		return nil, err
	}
	m, err := load(ctx, code, files)
	if err != nil {
		return nil, err
	}
	return code, m.Close()
}

// parsing has the version of Rego, and OPA's capabilities without the functions that depend
// on more than their arguments: requests, look-ups, clock, randomness, environment.
func parsing() ast.ParserOptions {
	c := ast.CapabilitiesForThisVersion()
	c.Builtins = slices.DeleteFunc(c.Builtins, func(b *ast.Builtin) bool { return b.IsNondeterministic() })
	c.AllowNet = []string{}
	return ast.ParserOptions{RegoVersion: ast.RegoV1, Capabilities: c}
}

// check parses and type-checks files, and returns the rules that they define, as paths.
func check(files map[string]string) (defined map[string]bool, err error) {
	size, modules, pure := 0, map[string]*ast.Module{}, parsing()
	defined = map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if size += len(files[name]); size > MaxSource {
			return nil, fmt.Errorf("rego: the rules have more than %d bytes", MaxSource)
		}
		m, err := ast.ParseModuleWithOpts(name, files[name], pure)
		if err != nil {
			return nil, fmt.Errorf("rego: %w", err)
		}
		modules[name] = m
		for _, rule := range m.Rules {
			path := strings.ReplaceAll(strings.TrimPrefix(m.Package.Path.String(), "data."), ".", "/")
			defined[path+"/"+strings.Trim(rule.Head.Ref()[0].Value.String(), `"`)] = true
		}
	}
	compiler := ast.NewCompiler().WithCapabilities(pure.Capabilities).WithStrict(true)
	if compiler.Compile(modules); compiler.Failed() {
		return nil, fmt.Errorf("rego: %w", compiler.Errors)
	}
	return defined, nil
}

// compileModule compiles rules that were checked into a module with the given entry points.
func compileModule(ctx context.Context, files map[string]string, entries []string) ([]byte, error) {
	b := &bundle.Bundle{Data: map[string]any{}}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		m, err := ast.ParseModuleWithOpts(name, files[name], ast.ParserOptions{RegoVersion: ast.RegoV1})
		if err != nil {
			return nil, fmt.Errorf("rego: %w", err)
		}
		b.Modules = append(b.Modules, bundle.ModuleFile{URL: name, Path: name, Parsed: m, Raw: []byte(files[name])})
	}
	c := compile.New().WithTarget(compile.TargetWasm).WithBundle(b).WithEntrypoints(entries...).
		WithRegoVersion(ast.RegoV1).WithOutput(new(bytes.Buffer))
	if err := c.Build(ctx); err != nil {
		return nil, fmt.Errorf("rego: %w", err)
	}
	if len(c.Bundle().WasmModules) != 1 {
		return nil, errors.New("internal error: OPA did not make one module")
	}
	return c.Bundle().WasmModules[0].Raw, nil
}

// load loads a module. The error for a function that modules do not have names its place in
// the rules.
func load(ctx context.Context, code []byte, files map[string]string) (*host.Module, error) {
	m, err := host.Load(ctx, host.Config{}, code)
	var missing *opa.Missing
	if !errors.As(err, &missing) {
		return m, err
	}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		rules := ast.MustParseModuleWithOpts(files[file], ast.ParserOptions{RegoVersion: ast.RegoV1})
		if at := uses(rules, missing.Functions); at != nil {
			return nil, fmt.Errorf("rego: %s:%d: %w", file, at.Row, missing)
		}
	}
	return nil, err
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
