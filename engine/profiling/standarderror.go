package profiling

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
)

// StandardErrors are the standard errors of a fit's coefficients.
//
// They come from the differences between fits that each leave one cell out. The requests of a cell share its
// iterations, and whatever else the machine did meanwhile: as independent measurements they would make the errors
// far too small.
type StandardErrors struct {
	QoE   [5]StandardError `json:"qoe"`
	D0    StandardError    `json:"d0"`
	D1    StandardError    `json:"d1"`
	D2    StandardError    `json:"d2"`
	D3    StandardError    `json:"d3"`
	D4    StandardError    `json:"d4"`
	Kappa StandardError    `json:"kappa"` // 0 if no mixed cells were measured
}

// StandardError is the standard error of a coefficient; +Inf, null in JSON, if a single cell determines it.
type StandardError float64

// MarshalJSON implements json.Marshaler.
func (e StandardError) MarshalJSON() ([]byte, error) {
	if math.IsInf(float64(e), 0) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(e))
}

// standardErrors returns the standard error of every coefficient.
func (r regression) standardErrors() []StandardError {
	out := make([]StandardError, len(r.Coefficients))
	fits := LeaveOneOut(r.rows)
	for i := range out {
		out[i] = StandardError(Jackknife(fits, func(c []float64) float64 { return c[i] }))
	}
	return out
}

// standardError returns that of a quantity that is computed from the coefficients.
func (r regression) standardError(quantity func([]float64) float64) StandardError {
	return StandardError(Jackknife(LeaveOneOut(r.rows), quantity))
}

// Coefficient is one coefficient of a fit.
type Coefficient struct {
	Name  string
	Value float64
	Error StandardError
}

// Determined reports whether the measurements show the coefficient: whether it exceeds its standard error.
func (c Coefficient) Determined() bool { return c.Value > float64(c.Error) }

// Coefficients returns the coefficients with their standard errors: D_0 … D_4 of the QoE model, d0 … d4 of an
// iteration, and κ if cells for it were measured.
func (f Fitted) Coefficients() []Coefficient {
	e := f.StandardErrors
	var all []Coefficient
	for k, v := range f.QoE {
		all = append(all, Coefficient{fmt.Sprint("D_", k), v, e.QoE[k]})
	}
	all = append(all, Coefficient{"d0", f.D0, e.D0}, Coefficient{"d1", f.D1, e.D1}, Coefficient{"d2", f.D2, e.D2}, Coefficient{"d3", f.D3, e.D3}, Coefficient{"d4", f.D4, e.D4})
	if f.Mixed {
		all = append(all, f.kappa())
	}
	return all
}

// undetermined names the coefficients that are not determined, except κ.
func undetermined(all []Coefficient) string {
	var names []string
	for _, c := range all {
		if c.Name != kappaName && !c.Determined() {
			names = append(names, c.Name)
		}
	}
	return strings.Join(names, ", ")
}

const kappaName = "κ"

func (f Fitted) kappa() Coefficient { return Coefficient{kappaName, f.Kappa, f.StandardErrors.Kappa} }

// Warnings says which parts of the fit the measurements do not support, and what to do.
func (f Fitted) Warnings() []string {
	var warnings []string
	if f.Bursty > 0 {
		warnings = append(warnings, fmt.Sprintf("Of %d of the cells only the end-to-end times are fitted: most of their tokens came in bursts, as through a proxy that collects them, or to a client that did not run.", f.Bursty))
	}
	if names := undetermined(f.Coefficients()[len(f.QoE):]); names != "" {
		warnings = append(warnings, "The measurements do not determine "+names+": the standard error is not below the value. Measure more cells (--factor 2, wider --lengths), or for longer (--seconds), on a machine that does nothing else.")
	}
	if names := undetermined(f.Coefficients()[:len(f.QoE)]); names != "" {
		warnings = append(warnings, "The measurements do not determine "+names+" one by one, since long batches are long in all of their sums: predict by all of D_0 … D_4 together, for loads like those measured.")
	}
	if f.Mixed && !f.kappa().Determined() {
		warnings = append(warnings, fmt.Sprintf("The measurements do not determine κ (%.3g ± %.2g): a profile made of them has 0, as if it had not been measured. Measure its cells for longer (--seconds) with longer prompts (--lengths), on a machine that does nothing else.", f.Kappa, f.StandardErrors.Kappa))
	}
	return warnings
}
