// Package report converts replay results and plans to text and Markdown tables, JSON, and pictures as SVG
// or PNG.
//
// It measures nothing and opens no file. Equal arguments give equal bytes. Figures are in engine time (see
// replay.Config.Speed), which is wall time if nothing is accelerated; the first result is the baseline of
// the comparison.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/policies"
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

// seconds prints a time with three digits and the unit that fits.
func seconds(s float64) string {
	switch {
	case s == 0:
		return "0"
	case s < 1e-3:
		return FormatNumber(s*1e6) + " µs"
	case s < 1:
		return FormatNumber(s*1e3) + " ms"
	}
	return FormatNumber(s) + " s"
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

// tokens prints a length: exact below 1,024 and where it is a whole number of
// Ki, else with three digits.
func tokens(t policies.Tokens) string {
	switch {
	case t == policies.Unbounded:
		return "∞"
	case t < 1<<10:
		return t.String()
	case t%(1<<10) == 0:
		return strconv.FormatInt(int64(t>>10), 10) + "Ki"
	}
	return FormatNumber(float64(t)/(1<<10)) + "Ki"
}

// percent prints a share.
func percent(share float64) string { return FormatNumber(100*share) + " %" }
