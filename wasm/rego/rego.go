package rego

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/opa"
)

// MaxSource bounds the text of all rules, in bytes.
const MaxSource = 1 << 20

// Config has the rules and their data.
type Config struct {
	// Files are the rules' texts by file name, in Rego v1. Required; ExampleRules are some.
	Files map[string]string
	// Data is the content of data in the rules: JSON, as encoding/json decodes it. It
	// is copied. Nil means none.
	Data map[string]any
	// Now is the clock for input.now. Nil means time.Now.
	Now func() time.Time
}

// Verdict is the result of an evaluation. Warnings have no effect.
type Verdict struct{ Denials, Warnings []abi.Denial }

// Rules are compiled rules. They are safe for concurrent use, and evaluate one question at
// a time.
type Rules struct {
	now    func() time.Time
	sets   []string // entry points
	module *host.Module
	data   []byte // JSON; nil for none

	mu       sync.Mutex
	instance *host.Instance // guarded by mu; nil before the first question, and after one that failed
}

// New compiles the rules. The error names file and line. Close frees them.
func New(ctx context.Context, c Config) (*Rules, error) {
	r := &Rules{now: c.Now}
	if r.now == nil {
		r.now = time.Now
	}
	defined, err := check(c.Files)
	if err != nil {
		return nil, err
	}
	for _, set := range []string{opa.PlanDeny, opa.PlanWarn, opa.SlotDeny, opa.SlotWarn} {
		if defined[set] {
			r.sets = append(r.sets, set)
		}
	}
	if !r.Plans() && !r.Rollouts() {
		return nil, errors.New(`rego: no rule "deny" in package cascade.plan nor cascade.slot`)
	}
	if c.Data != nil {
		if r.data, err = json.Marshal(c.Data); err != nil {
			return nil, fmt.Errorf("rego: data: %w", err)
		}
	}
	code, err := compileModule(ctx, c.Files, r.sets)
	if err != nil {
		return nil, err
	}
	if r.module, err = load(ctx, code, c.Files); err != nil {
		return nil, err
	}
	if r.instance, err = r.start(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Close frees the rules. They must not be asked any more.
func (r *Rules) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.instance != nil {
		r.instance.Close()
	}
	return r.module.Close()
}

// Plans reports whether the rules judge plans. If not, Plan returns an error.
func (r *Rules) Plans() bool { return slices.Contains(r.sets, opa.PlanDeny) }

// Rollouts reports whether the rules judge rollouts. If not, Rollout returns an error.
func (r *Rules) Rollouts() bool { return slices.Contains(r.sets, opa.SlotDeny) }

// start returns an instance with the rules' data.
func (r *Rules) start() (*host.Instance, error) {
	i, err := r.module.Instantiate()
	if err == nil && r.data != nil {
		if err = i.Configure(abi.Call{}, r.data); err != nil {
			i.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("rego: %w", err)
	}
	return i, nil
}

// ask evaluates the two sets of a package on an input.
func (r *Rules) ask(deny, warn string, input []byte) (v Verdict, err error) {
	if !slices.Contains(r.sets, deny) {
		return v, errors.New("rego: there are no rules for this question")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.instance == nil {
		if r.instance, err = r.start(); err != nil {
			return v, err
		}
	}
	v.Denials, err = r.instance.Evaluate(deny, input)
	if err == nil && slices.Contains(r.sets, warn) {
		v.Warnings, err = r.instance.Evaluate(warn, input)
	}
	if err != nil {
		r.instance.Close()
		r.instance = nil
		return Verdict{}, fmt.Errorf("rego: evaluate: %w", err)
	}
	return v, nil
}
