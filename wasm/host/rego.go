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

// adaptOPA returns a module of OPA's as package meter takes it, and asks for the
// kinds that it has.
func (m *Module) adaptOPA(original []byte) ([]byte, error) {
	c := &m.config
	for _, k := range c.Kinds {
		if k != abi.Guard && k != abi.Configure {
			return nil, fmt.Errorf("host: rules in Rego decide the kind %s, not %s", abi.Guard, k)
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

// answerOPA adds the host's half of what OPA's modules import to a runtime.
func answerOPA(ctx context.Context, r wazero.Runtime) error {
	b := r.NewHostModuleBuilder("env")
	for _, im := range opa.Imports() {
		b = b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, mod api.Module, stack []uint64) {
			i := ctx.Value(instanceKey{}).(*Instance)
			i.charge(mod, HostTicks)
			im.Do(lent{i}, mod, stack)
		}), im.Params, im.Results).Export(im.Name)
	}
	_, err := b.Instantiate(ctx)
	return err
}

// tryOPA starts an instance: what OPA's module needs of its host is known only
// then, and a refusal belongs to Load. Fuel alone bounds it, so that the verdict
// is the same everywhere.
func (m *Module) tryOPA() error {
	watch := m.config.Watch
	m.config.Watch = nil
	i, err := m.Instantiate()
	m.config.Watch = watch
	if err == nil {
		return i.Close()
	}
	var f *Fault
	if errors.As(err, &f) && f.Err != nil {
		err = f.Err
	}
	return fmt.Errorf("host: %w", err)
}

// bindOPA has a Guest stand in for the functions of cascade-policy/1.
func (i *Instance) bindOPA() {
	g := opa.NewGuest(i.mod, lent{i})
	i.arenaFn, i.fns[abi.Configure], i.fns[abi.Guard] = g.Arena(), g.Configure(), g.Guard()
}

// lent is what a Guest gets of its instance.
type lent struct{ i *Instance }

// Charge implements opa.Host.
func (l lent) Charge(ticks int64) { l.i.charge(l.i.mod, ticks) }

// Say implements opa.Host.
func (l lent) Say(text string) { l.i.said = []byte(text) }

// Log implements opa.Host.
func (l lent) Log(text string) {
	m := l.i.module
	if m.log.room(time.Now()) {
		m.log.to.Log(context.Background(), slog.LevelWarn, "policy says", "text", text[:min(len(text), LogBytes)])
	}
}
