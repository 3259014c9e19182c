package wiring

import (
	"context"
	"errors"
	"fmt"

	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/store"
)

// SharedState is a state that control planes on several hosts share. All fields are set.
type SharedState struct {
	Plan       store.Store // also an io.Closer, which closes all of the state
	Counters   func(name string) fleet.Counters
	Modules    store.Modules
	Notes      func(folder string) store.Notes
	CreateOnce func(ctx context.Context, name string, secret []byte) ([]byte, error)
	Close      func() error
}

// ErrNoKubernetes says that this binary has no client of Kubernetes.
var ErrNoKubernetes = errors.New("this command has no Kubernetes client: run cascade-kube control")

// OpenState returns the state that control planes on several hosts share; nil where state names
// a directory or nothing. It dials nothing. The caller closes it. For Kubernetes it returns
// ErrNoKubernetes (wrapped): the caller opens that itself, and passes it to ControlWith.
func (f *Fleet) OpenState() (*SharedState, error) {
	if _, _, ok := f.KubernetesState(); ok {
		return nil, fmt.Errorf("state %s: %w", f.State, ErrNoKubernetes)
	}
	c, err := f.OpenEtcd()
	if c == nil {
		return nil, err
	}
	return &SharedState{
		Plan: c.Plan(), Modules: c.Modules(), CreateOnce: c.CreateOnce, Close: c.Close,
		Counters: func(name string) fleet.Counters { return c.Counters(name) },
		Notes:    func(folder string) store.Notes { return c.Notes(folder) },
	}, nil
}
