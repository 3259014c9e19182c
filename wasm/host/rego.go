package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/opa"
	"github.com/cascadeinfer/cascade/wasm/meter"
)

// adaptOPA returns a module that OPA compiled in a form that package meter accepts, and
// sets its kinds.
func (m *Module) adaptOPA(original []byte) ([]byte, error) {
	c := &m.config
	for _, k := range c.Kinds {
		if k != abi.Guard && k != abi.Configure {
			return nil, fmt.Errorf("host: Rego rules decide kind %s, not %s", abi.Guard, k)
		}
	}
	m.opa, c.Kinds = true, []abi.Kind{abi.Configure, abi.Guard}
	if c.Meter.Imports == nil {
		for _, i := range opa.Imports() {
			c.Meter.Imports = append(c.Meter.Imports, meter.Import{Module: i.Module, Name: i.Name})
		}
	}
	code, err := opa.Adapt(original)
	if err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	return code, nil
}

// addOPAImports adds the implementations of the imports of OPA's modules to a runtime.
func addOPAImports(ctx context.Context, r wazero.Runtime) error {
	b := r.NewHostModuleBuilder("env")
	for _, im := range opa.Imports() {
		b = b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, mod api.Module, stack []uint64) {
			i := ctx.Value(instanceKey{}).(*Instance)
			i.charge(mod, HostTicks)
			im.Do(opaHost{i}, mod, stack)
		}), im.Params, im.Results).Export(im.Name)
	}
	_, err := b.Instantiate(ctx)
	return err
}

// checkOPAStart starts an instance, because only then it is known which functions OPA's
// module needs from its host, and Load must refuse a module that needs others. Only fuel
// bounds it, so that the result is the same on every machine.
func (m *Module) checkOPAStart() error {
	watch := m.config.Watchdog
	m.config.Watchdog = nil
	i, err := m.Instantiate()
	m.config.Watchdog = watch
	if err == nil {
		return i.Close()
	}
	var f *Fault
	if errors.As(err, &f) && f.Err != nil {
		err = f.Err
	}
	return fmt.Errorf("host: %w", err)
}

// bindOPA uses an opa.Guest for the functions of cascade-policy/1.
func (i *Instance) bindOPA() {
	g := opa.NewGuest(i.mod, opaHost{i})
	i.opa = g
	i.arenaFn, i.fns[abi.Configure], i.fns[abi.Guard] = g.Arena(), g.Configure(), g.Guard()
}

// Evaluate evaluates a set of rules in Rego, such as opa.PlanDeny, on an input document,
// within the limits of a guard. The error is a *Fault, after which the instance is dead.
func (i *Instance) Evaluate(set string, input []byte) (findings []abi.Denial, err error) {
	switch {
	case i.dead != nil:
		return nil, i.dead
	case i.opa == nil:
		return nil, i.fault(abi.Guard, Unknown, errors.New("the module has no rules in Rego"))
	case len(input) > i.limits[abi.Guard].Frame:
		return nil, i.fault(abi.Guard, TooLarge, fmt.Errorf("the input has %d bytes", len(input)))
	}
	_, err = i.invoke(abi.Guard, i.opa.Evaluation(set, input, &findings), 0)
	return findings, err
}

// opaHost is the opa.Host of an instance.
type opaHost struct{ i *Instance }

// Charge implements opa.Host.
func (l opaHost) Charge(ticks int64) { l.i.charge(l.i.mod, ticks) }

// Fail implements opa.Host.
func (l opaHost) Fail(text string) { l.i.failText = []byte(text) }

// Log implements opa.Host.
func (l opaHost) Log(text string) {
	m := l.i.module
	if m.log.allow(time.Now()) {
		m.log.logger.Log(context.Background(), slog.LevelWarn, "policy module logged", "text", text[:min(len(text), LogBytes)])
	}
}
