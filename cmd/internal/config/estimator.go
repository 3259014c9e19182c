package config

import (
	"fmt"
	"strings"
)

// The values of Control.Estimator besides the file of a module.
const (
	EstimatorContentLength = "content-length"
	EstimatorExtProc       = "ext_proc"
)

// EstimatorModule returns the file of the estimator that runs inside Envoys, "" if none does.
func (c Control) EstimatorModule() string {
	if strings.HasSuffix(c.Estimator, ".wasm") {
		return c.Estimator
	}
	return ""
}

// validateEstimator checks that the length and the model of each request can be found.
func (f *Fleet) validateEstimator(c *checker) {
	switch e := f.Control.Estimator; {
	case e == EstimatorExtProc || f.Control.EstimatorModule() != "":
	case e != EstimatorContentLength:
		c.fail("control.estimator", "%q: must be %q, %q, or the file of a module, whose name ends in .wasm", e, EstimatorContentLength, EstimatorExtProc)
	case len(f.Models) > 1:
		for i, m := range f.Models {
			if len(m.Hosts) == 0 {
				c.fail(fmt.Sprintf("models[%d].hosts", i), "with several models and control.estimator content-length, every model needs a host name of its own; or set control.estimator to ext_proc or a module")
			}
		}
	}
}
