package wiring

import (
	"fmt"
	"os"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// loadEstimator sets the estimator in the settings, with the module that runs inside
// Envoys, if the fleet has one.
func (f *Fleet) loadEstimator(s *resources.Settings) error {
	module := f.Fleet.Control.EstimatorModule()
	if module == "" {
		s.Estimator = resources.Estimator(f.Fleet.Control.Estimator)
		return nil
	}
	s.Estimator = resources.Wasm
	path := f.resolvePath(module)
	if info, err := os.Stat(path); err == nil && info.Size() > resources.MaxModule {
		return fmt.Errorf("control.estimator: %s has %d bytes; proxies get at most %d", path, info.Size(), resources.MaxModule)
	}
	code, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("control.estimator: %w", err)
	}
	if s.Module, err = resources.NewModule(code, f.Fleet.Proxy.BodyLimit.Bytes()); err != nil {
		return fmt.Errorf("control.estimator: %s: %w", path, err)
	}
	if err := checkEstimatorModule(code); err != nil {
		return fmt.Errorf("control.estimator: %s: %w", path, err)
	}
	return nil
}
