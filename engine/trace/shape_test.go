package trace

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

func second(n ...int) []Request {
	var out []Request
	for i, s := range n {
		out = append(out, Request{At: time.Duration(s) * time.Second, Input: 100 * policies.Tokens(i+1), Output: 10})
	}
	return out
}

func TestShape(t *testing.T) {
	at := func(rs []Request) (out []float64) {
		for _, r := range rs {
			out = append(out, r.At.Seconds())
		}
		return out
	}
	for name, tc := range map[string]struct {
		shape Shape
		want  []float64
	}{
		"zero moves the origin only": {Shape{}, []float64{0, 2, 4, 10}},
		"speed":                      {Shape{Speed: 2}, []float64{0, 1, 2, 5}},
		"rate 3 gaps in 1 s":         {Shape{Rate: 3}, []float64{0, 0.2, 0.4, 1}},
		"limit":                      {Shape{Limit: 2}, []float64{0, 2}},
		"max input":                  {Shape{MaxInput: 200}, []float64{0, 2}},
		"max length":                 {Shape{MaxLength: 310}, []float64{0, 2, 4}},
		"until, on the trace's time": {Shape{Until: 9 * time.Second}, []float64{0, 2, 4}},
		"a slice":                    {Shape{From: 6 * time.Second, Until: 9 * time.Second}, []float64{0, 2}},
		"from, on the trace's time":  {Shape{From: 9 * time.Second, Speed: 2}, []float64{0, 3}},
		"limit, then rate":           {Shape{Limit: 3, Rate: 1}, []float64{0, 1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			given := second(5, 7, 9, 15)
			got, err := tc.shape.Apply(given)
			testkit.NoError(t, err)
			if d := cmp.Diff(tc.want, at(got)); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
			if d := cmp.Diff(second(5, 7, 9, 15), given); d != "" {
				t.Errorf("Apply changed its argument: %s", d)
			}
		})
	}
}

func TestShapeSpread(t *testing.T) {
	given := make([]Request, 3000)
	for i := range given {
		given[i] = Request{At: time.Duration(i/10*3) * time.Second, Input: 1, Output: 1}
	}
	got, err := Shape{Spread: 3 * time.Second, Seed: 7}.Apply(given)
	testkit.NoError(t, err)
	testkit.NoError(t, holds(got))
	if cv, _ := fitArrivals(got); math.Abs(cv-0.9) > 0.05 {
		t.Errorf("ten arrivals spread over 3 s have gaps of variation %.2f, not about 0.9", cv)
	}
	again, _ := Shape{Spread: 3 * time.Second, Seed: 7}.Apply(given)
	if !cmp.Equal(got, again) {
		t.Error("equal seeds give different traces")
	}
	other, _ := Shape{Spread: 3 * time.Second, Seed: 8}.Apply(given)
	if cmp.Equal(got, other) {
		t.Error("the seed changes nothing")
	}
}

func TestShapeOfLengthsOnly(t *testing.T) {
	given := make([]Request, 20000)
	for i := range given {
		given[i] = Request{At: NoArrival, Input: 1, Output: 1}
	}
	if _, err := (Shape{}).Apply(given); !errors.Is(err, ErrNoRate) {
		t.Fatalf("no rate gives %v", err)
	}
	got, err := Shape{Rate: 50}.Apply(given)
	testkit.NoError(t, err)
	if rate := Rate(got); math.Abs(rate-50) > 2 {
		t.Errorf("the rate is %.1f/s, not 50", rate)
	}
}

func TestShapeErrors(t *testing.T) {
	for want, s := range map[string]Shape{
		"rate (requests/s)": {Rate: math.NaN()},
		"speed":             {Speed: -1},
		"spread":            {Spread: -1},
		"limit":             {Limit: -1},
		"max input":         {MaxInput: -1},
		"rate and speed":    {Rate: 1, Speed: 1},
		"no request":        {MaxInput: 1},
	} {
		_, err := s.Apply(second(1, 2))
		testkit.WantError(t, err, want)
	}
}
