// Package report converts replay results and plans to text and Markdown tables, JSON, and SVG pictures.
//
// It measures nothing and opens no file. Equal arguments give equal bytes. Figures are in engine time (see
// replay.Config.Speed), which is wall time if nothing is accelerated. Ratios are to the best other result.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/cascadeinfer/cascade/engine/replay"
)

// Metric is one of the latencies of a result.
type Metric int

// The metrics.
const (
	TTFT Metric = iota
	TPOT
	Normalised
	E2E
)

// metrics lists them all, in the order of tables.
var metrics = [...]Metric{TTFT, TPOT, Normalised, E2E}

// String is the metric's name in tables.
func (m Metric) String() string {
	return [...]string{"TTFT", "TPOT", "normalised latency", "end-to-end latency"}[m]
}

// axis is the metric's name and meaning on an axis.
func (m Metric) axis() string {
	return [...]string{"time to first token", "time per output token", "end-to-end latency per output token", "end-to-end latency"}[m]
}

// of picks the metric's summary.
func (m Metric) of(l replay.Latency) replay.Summary {
	return [...]replay.Summary{l.TTFT, l.TPOT, l.Normalised, l.E2E}[m]
}

// WriteJSON writes the results as one indented JSON array. Records are not
// part of it.
func WriteJSON(w io.Writer, results []replay.Result) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(results); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}

// name returns the result's name, with a warning if it is no valid measurement.
func name(r replay.Result) string {
	if r.Void != "" {
		return r.Name + " (void)"
	}
	return r.Name
}

// FormatTime returns a time in seconds with three digits and the unit that fits.
func FormatTime(s float64) string { return timeWithUnit(s, FormatNumber) }

// timeWithUnit prints a time in seconds in the unit that fits. What rounds to the next unit is in that one.
func timeWithUnit(s float64, number func(float64) string) string {
	switch {
	case s == 0:
		return "0"
	case s < 0.9995e-3:
		return number(s*1e6) + " µs"
	case s < 0.9995:
		return number(s*1e3) + " ms"
	}
	return number(s) + " s"
}

// FormatNumber returns x with three significant digits, or all digits before the point, and no exponent.
func FormatNumber(x float64) string {
	switch {
	case x >= 100:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case x >= 10:
		return strconv.FormatFloat(x, 'f', 1, 64)
	}
	return strconv.FormatFloat(x, 'f', 2, 64)
}

// percent prints a share.
func percent(share float64) string { return FormatNumber(100*share) + " %" }
