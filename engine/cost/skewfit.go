package cost

import (
	"embed"
	"encoding/json"
	"math"
	"path"
)

//go:embed skews/*.json
var builtinSkews embed.FS

// SkewFit is a SkewTable in few coefficients: alpha by the batch's size and by its mean over its longest
// length, for every longest length within the range of the measurements, on which it hardly depends.
type SkewFit struct {
	Name    string `json:"name"`
	Source  string `json:"source"`
	Command string `json:"command"` // makes it again, from its measurements
	// Shortest and Longest bound the longest lengths of the batches that were measured.
	Shortest int `json:"shortest"`
	Longest  int `json:"longest"`
	// Sequences are the sizes of the batches, Means those of the mean over the longest length; Alpha has a row
	// per size.
	Sequences []int       `json:"sequences"`
	Means     []float64   `json:"means"`
	Alpha     [][]float64 `json:"alpha"`
	// FitError is that of the predicted times of the measured batches.
	FitError FitError `json:"fit_error"`
}

// BuiltinSkewName is the name of the built-in SkewFit, which is that of the profile of the same GPU.
const BuiltinSkewName = "rtxpro6000-llama-3.1-8b"

// BuiltinSkew returns the built-in fit.
func BuiltinSkew() SkewFit {
	data, err := builtinSkews.ReadFile(path.Join("skews", BuiltinSkewName+".json"))
	if err != nil {
		panic("internal error: embedded skew: " + err.Error())
	}
	var f SkewFit
	if err := json.Unmarshal(data, &f); err != nil {
		panic("internal error: embedded skew: " + err.Error())
	}
	return f
}

// Table returns the table of the fit.
func (f SkewFit) Table() *SkewTable {
	t := &SkewTable{longest: []float64{math.Log2(float64(f.Shortest)), math.Log2(float64(f.Longest))}}
	for i, n := range f.Sequences {
		var cell skewCell
		for j, mean := range f.Means {
			cell = append(cell, skewPoint{mean, f.Alpha[i][j]})
		}
		t.sequences, t.cells = append(t.sequences, math.Log2(float64(n))), append(t.cells, []skewCell{cell, cell})
	}
	return t
}
