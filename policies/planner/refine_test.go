package planner

import (
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []policies.Tokens
		want   policies.Tokens
	}{{[]policies.Tokens{5}, 5}, {[]policies.Tokens{9, 1}, 5}, {[]policies.Tokens{2, 1}, 1}, {[]policies.Tokens{9, 100, 1}, 9}, {[]policies.Tokens{policies.Unbounded, policies.Unbounded - 2}, policies.Unbounded - 1}} {
		if got := median(slices.Clone(c.values)); got != c.want {
			t.Errorf("median of %v is %v, want %v", c.values, got, c.want)
		}
	}
}
