package rego

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage/inmem"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/internal/regodocument"
)

const (
	// DefaultTimeout is the default of Config.Timeout.
	DefaultTimeout = 250 * time.Millisecond
	// MaxSource bounds the text of all rules, in bytes.
	MaxSource = 1 << 20
)

// Config has the rules and their data.
type Config struct {
	// Files are the rules' texts by file name, in Rego v1. Required; rules.Files
	// has examples.
	Files map[string]string
	// Data is the content of data in the rules: JSON, as encoding/json decodes it. It
	// is copied. Nil means none.
	Data map[string]any
	// Timeout bounds one evaluation. 0 means DefaultTimeout.
	Timeout time.Duration
	// Now is the clock for input.now. Nil means time.Now.
	Now func() time.Time
}

// Verdict is the result of an evaluation. Warnings have no effect.
type Verdict struct{ Denials, Warnings []abi.Denial }

// Rules are compiled rules. They are safe for concurrent use.
type Rules struct {
	timeout time.Duration
	now     func() time.Time
	plan    question
	slot    question
}

// question has the queries for the two sets of a package. deny is nil if the rules have
// no such package, and warn if that has no such set.
type question struct{ deny, warn *rego.PreparedEvalQuery }

// New compiles the rules. The error names file and line.
func New(ctx context.Context, c Config) (*Rules, error) {
	r := &Rules{timeout: c.Timeout, now: c.Now}
	r.timeout = cmp.Or(r.timeout, DefaultTimeout)
	if r.timeout < 0 {
		return nil, errors.New("rego: timeout must not be negative")
	}
	if r.now == nil {
		r.now = time.Now
	}
	compiler, defined, err := compile(c.Files)
	if err != nil {
		return nil, err
	}
	data, err := copied(c.Data)
	if err != nil {
		return nil, err
	}
	store := inmem.NewFromObject(data)
	prepare := func(set string) (*rego.PreparedEvalQuery, error) {
		if !defined[set] {
			return nil, nil
		}
		q, err := rego.New(rego.Query(set), rego.Compiler(compiler), rego.Store(store), rego.StrictBuiltinErrors(true)).PrepareForEval(ctx)
		if err != nil {
			return nil, fmt.Errorf("rego: prepare %s: %w", set, err)
		}
		return &q, nil
	}
	for name, q := range map[string]*question{"data.cascade.plan": &r.plan, "data.cascade.slot": &r.slot} {
		if q.deny, err = prepare(name + ".deny"); err != nil {
			return nil, err
		}
		if q.warn, err = prepare(name + ".warn"); err != nil {
			return nil, err
		}
	}
	if r.plan.deny == nil && r.slot.deny == nil {
		return nil, errors.New(`rego: no rule "deny" in package cascade.plan nor cascade.slot`)
	}
	return r, nil
}

// Plans reports whether the rules judge plans. If not, Plan returns an error.
func (r *Rules) Plans() bool { return r.plan.deny != nil }

// Rollouts reports whether the rules judge rollouts. If not, Rollout returns an error.
func (r *Rules) Rollouts() bool { return r.slot.deny != nil }

// copied returns a copy of the data as decoded JSON with numbers as json.Number. OPA's
// store panics on other types.
func copied(data map[string]any) (map[string]any, error) {
	out := map[string]any{}
	if data == nil {
		return out, nil
	}
	b, err := json.Marshal(data)
	if err != nil {
		return nil, fmt.Errorf("rego: data: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&out); err != nil {
		return nil, fmt.Errorf("rego: data: %w", err)
	}
	return out, nil
}

// compile parses and compiles files, and returns the names of the rules that they define.
func compile(files map[string]string) (*ast.Compiler, map[string]bool, error) {
	size, modules, defined := 0, map[string]*ast.Module{}, map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if size += len(files[name]); size > MaxSource {
			return nil, nil, fmt.Errorf("rego: the rules have more than %d bytes", MaxSource)
		}
		m, err := ast.ParseModuleWithOpts(name, files[name], ast.ParserOptions{RegoVersion: ast.RegoV1, Capabilities: pure()})
		if err != nil {
			return nil, nil, fmt.Errorf("rego: %w", err)
		}
		modules[name] = m
		for _, rule := range m.Rules {
			defined[m.Package.Path.String()+"."+rule.Head.Ref()[0].Value.String()] = true
			defined[m.Package.Path.String()+"."+string(rule.Head.Name)] = true
		}
	}
	compiler := ast.NewCompiler().WithCapabilities(pure()).WithStrict(true)
	if compiler.Compile(modules); compiler.Failed() {
		return nil, nil, fmt.Errorf("rego: %w", compiler.Errors)
	}
	return compiler, defined, nil
}

// pure returns OPA's capabilities without the functions that depend on more than their
// arguments: requests, look-ups, clock, randomness, environment.
func pure() *ast.Capabilities {
	c := ast.CapabilitiesForThisVersion()
	c.Builtins = slices.DeleteFunc(c.Builtins, func(b *ast.Builtin) bool { return b.IsNondeterministic() })
	c.AllowNet = []string{}
	return c
}

// ask evaluates the two sets of a package on an input.
func (r *Rules) ask(ctx context.Context, q question, input ast.Value) (Verdict, error) {
	if q.deny == nil {
		return Verdict{}, errors.New("rego: there are no rules for this question")
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	var v Verdict
	var err error
	if v.Denials, err = findings(ctx, q.deny, input); err != nil {
		return Verdict{}, err
	}
	v.Warnings, err = findings(ctx, q.warn, input)
	return v, err
}

// findings evaluates one set.
func findings(ctx context.Context, q *rego.PreparedEvalQuery, input ast.Value) ([]abi.Denial, error) {
	if q == nil {
		return nil, nil
	}
	results, err := q.Eval(ctx, rego.EvalParsedInput(input))
	if err != nil {
		return nil, fmt.Errorf("rego: evaluate: %w", err)
	}
	if len(results) != 1 || len(results[0].Expressions) != 1 {
		return nil, fmt.Errorf("rego: %w", regodocument.ErrNoAnswer)
	}
	out, err := regodocument.Findings(results[0].Expressions[0].Value)
	if err != nil {
		return nil, fmt.Errorf("rego: %w", err)
	}
	return out, nil
}
