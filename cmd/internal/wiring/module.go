package wiring

import (
	"fmt"
	"os"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// module reads the estimator that Envoys run themselves into the settings,
// where the fleet has one.
func (f *Fleet) module(s *resources.Settings) error {
	if f.Fleet.Control.Module == "" {
		return nil
	}
	path := f.path(f.Fleet.Control.Module)
	if info, err := os.Stat(path); err == nil && info.Size() > resources.MaxModule {
		return fmt.Errorf("control.module: %s has %d bytes, at most %d are sent to proxies", path, info.Size(), resources.MaxModule)
	}
	code, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("control.module: %w", err)
	}
	if s.Module, err = resources.NewModule(code); err != nil {
		return fmt.Errorf("control.module: %s: %w", path, err)
	}
	if err := estimates(code); err != nil {
		return fmt.Errorf("control.module: %s: %w", path, err)
	}
	return nil
}
