package wiring

import (
	"errors"
	"fmt"

	"github.com/cascadeinfer/cascade/xds/store"
)

// ErrNoKubernetes says that this binary has no client of Kubernetes.
var ErrNoKubernetes = errors.New("this command has no Kubernetes client: run cascade-kube control")

// OpenState returns what the fleet's control planes share; nil where state names nothing. It
// creates a state directory, and dials nothing. The caller closes it. For Kubernetes it returns
// ErrNoKubernetes (wrapped): the caller opens that itself, and passes it to ControlWith.
func (f *Fleet) OpenState() (*store.Store, error) {
	if _, _, ok := f.KubernetesState(); ok {
		return nil, fmt.Errorf("state %s: %w", f.State, ErrNoKubernetes)
	}
	var b store.Backend
	var err error
	if members, prefix, ok := f.EtcdState(); ok {
		b, err = f.openEtcd(members, prefix)
	} else if dir := f.StateDir(); dir != "" {
		b, err = store.NewFile(dir)
	} else {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	return store.New(b), nil
}
