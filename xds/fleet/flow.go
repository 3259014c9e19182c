package fleet

import (
	"math"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// fade is the weight of a flow whose last report is so old: 1 within the
// grace, then halved per half life; 0 when too little is left to plan on.
func fade(age, grace, halfLife time.Duration) float64 {
	if age <= grace {
		return 1
	}
	w := math.Exp2(-float64(age-grace) / float64(halfLife))
	if w < 1.0/64 {
		return 0
	}
	return w
}

// addFaded adds w times flow o to sum, cell by cell; both have sum's edges.
func addFaded(sum, o policies.Flow, w float64) {
	from := columns(o)
	for i, c := range columns(sum) {
		for b := range c {
			c[b] += float64(w * from[i][b])
		}
	}
}

// sameEdges says that two flows can be added.
func sameEdges(a, b []policies.Tokens) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// arrivals is a flow's requests per second.
func arrivals(f policies.Flow) (sum float64) {
	for _, x := range f.Arrivals {
		sum += x
	}
	return sum
}
