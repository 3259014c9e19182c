package measure

import (
	"encoding/json"
	"strings"
	"testing"
)

// good are rows of a machine that reaches all goals.
func good() []Row {
	slower := func(x float64) *float64 { return &x }
	return []Row{
		{Part: Within, Path: "contiguous", Rate: 1e12, Seconds: 1},
		{Part: Within, Path: "a call per block", Rate: 1e11},
		{Part: Within, Path: "kernel", Groups: 8, Rate: 6e11, Submit: 70e-6},
		{Part: Within, Path: "kernel", Groups: 16, Rate: 9.1e11, Submit: 31.2e-6},
		{Part: Within, Path: "kernel", Groups: 32, Rate: 9.9e11, Submit: 99e-6},
		{Part: ToHost, Path: "contiguous", Rate: 1e9},
		{Part: Decode, Path: Alone, Of: "process 7", Seconds: 1},
		{Part: Decode, Path: ByKernel, Of: "process 7", Groups: 16, Slower: slower(0.009)},
		{Part: Decode, Path: ByKernel, Of: "process 7", Groups: 32, Slower: slower(0.9)},
		{Part: Decode, Path: ByCopies, Of: "process 7", Slower: slower(-0.001)},
		{Part: Decode, Path: AloneAgain, Of: "process 7", Slower: slower(-0.002)},
	}
}

func TestGoals(t *testing.T) {
	drop := func(rows []Row, out func(Row) bool) (kept []Row) {
		for _, r := range rows {
			if !out(r) {
				kept = append(kept, r)
			}
		}
		return kept
	}
	set := func(rows []Row, path string, groups int, f func(*Row)) []Row {
		for i := range rows {
			if rows[i].Path == path && rows[i].Groups == groups {
				f(&rows[i])
			}
		}
		return rows
	}
	for _, c := range []struct {
		name string
		rows []Row
		want string // lines
	}{
		{"all are met", good(), `
goal: gather ≥ 0.85× contiguous: 0.91× with 16 CTAs, met
goal: submit ≤ 50 µs: 31.2 µs with 16 CTAs, met
goal: decode slow-down ≤ 1 %: +0.9 % by the kernel with 16 CTAs, of process 7, met
goal: decode slow-down ≤ 1 %: -0.1 % by the copy engines, of process 7, met`},
		{"none is met", set(set(set(set(good(), "kernel", 16, func(r *Row) { r.Rate, r.Submit = 5e11, 51e-6 }), "kernel", 32, func(r *Row) { r.Rate = 7e11 }),
			ByKernel, 16, func(r *Row) { *r.Slower = 1.25 }), ByCopies, 0, func(r *Row) { *r.Slower = 0.02 }), `
goal: gather ≥ 0.85× contiguous: 0.50× with 16 CTAs, not met (0.70× with 32)
goal: submit ≤ 50 µs: 51.0 µs with 16 CTAs, not met
goal: decode slow-down ≤ 1 %: +125.0 % by the kernel with 16 CTAs, of process 7, not met
goal: decode slow-down ≤ 1 %: +2.0 % by the copy engines, of process 7, not met`},
		{"nothing is measured", nil, `
goal: gather ≥ 0.85× contiguous: not measured: the kernel was not timed, or copied wrong bytes
goal: submit ≤ 50 µs: not measured: the kernel was not timed, or copied wrong bytes
goal: decode slow-down ≤ 1 %: not measured: no steps of another process were timed`},
		{"other CTAs, and no batch call", drop(good(), func(r Row) bool { return r.Groups == 16 || r.Path == ByCopies }), `
goal: gather ≥ 0.85× contiguous: not measured: the kernel was not run with the 16 CTAs that transport cuda uses
goal: submit ≤ 50 µs: not measured: the kernel was not run with the 16 CTAs that transport cuda uses
goal: decode slow-down ≤ 1 %: not measured: by the kernel with 16 CTAs, of process 7: no step was timed beside such a transfer
goal: decode slow-down ≤ 1 %: not measured: by the copy engines, of process 7: no step was timed beside such a transfer`},
		{"noise, and no contiguous copy", set(drop(good(), func(r Row) bool { return r.Path == "contiguous" }), AloneAgain, 0, func(r *Row) { *r.Slower = -0.03 }), `
goal: gather ≥ 0.85× contiguous: not measured: no rate of a contiguous copy was measured
goal: submit ≤ 50 µs: 31.2 µs with 16 CTAs, met
goal: decode slow-down ≤ 1 %: not measured: by the kernel with 16 CTAs, of process 7: it would be +0.9 %, but a step alone differed from itself by -3.0 %: others use the GPU, or its clocks change
goal: decode slow-down ≤ 1 %: not measured: by the copy engines, of process 7: it would be -0.1 %, but a step alone differed from itself by -3.0 %: others use the GPU, or its clocks change`},
		{"it ends early", drop(good(), func(r Row) bool { return r.Path == AloneAgain || r.Path == ByCopies || r.Part == Within }), `
goal: gather ≥ 0.85× contiguous: not measured: the kernel was not timed, or copied wrong bytes
goal: submit ≤ 50 µs: not measured: the kernel was not timed, or copied wrong bytes
goal: decode slow-down ≤ 1 %: not measured: by the kernel with 16 CTAs, of process 7: no step was timed alone, before and after
goal: decode slow-down ≤ 1 %: not measured: by the copy engines, of process 7: no step was timed beside such a transfer`},
	} {
		got := ""
		for _, g := range EvaluateGoals(c.rows) {
			got += "\n" + g.Text
			if (g.Measured == nil) != (g.Verdict == NotMeasured) || (g.Reason == "") == (g.Verdict == NotMeasured) || g.Limit <= 0 || !strings.Contains(g.Text, g.Verdict) {
				t.Errorf("%s: %+v", c.name, g)
			}
			if _, err := json.Marshal(g); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		if got != c.want {
			t.Errorf("%s:%s\nwant:%s", c.name, got, c.want)
		}
	}
	// Two processes have goals of their own.
	two := good()
	for _, r := range good()[6:] {
		r.Of = "PyTorch"
		two = append(two, r)
	}
	if got := EvaluateGoals(two); len(got) != 6 || !strings.Contains(got[5].Text, "of PyTorch, met") {
		t.Errorf("%+v", got)
	}
}
