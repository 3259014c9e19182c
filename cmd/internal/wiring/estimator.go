package wiring

import (
	"fmt"
	"os"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// loadEstimator reads the length estimator that runs inside Envoys into the
// settings, if the fleet has one.
func (f *Fleet) loadEstimator(s *resources.Settings) error {
	if f.Fleet.Control.Module == "" {
		return nil
	}
	path := f.resolvePath(f.Fleet.Control.Module)
	if info, err := os.Stat(path); err == nil && info.Size() > resources.MaxModule {
		return fmt.Errorf("control.module: %s has %d bytes; proxies get at most %d", path, info.Size(), resources.MaxModule)
	}
	code, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("control.module: %w", err)
	}
	if s.Module, err = resources.NewModule(code); err != nil {
		return fmt.Errorf("control.module: %s: %w", path, err)
	}
	if err := checkEstimatorModule(code); err != nil {
		return fmt.Errorf("control.module: %s: %w", path, err)
	}
	return nil
}
