package partition

import (
	"testing"

	"github.com/cascadeinfer/cascade/policies"
)

// TestSequencesAreBounded checks that what a control plane or a few successors say does not
// grow to more sequences than a Refiner can weigh.
func TestSequencesAreBounded(t *testing.T) {
	if n := len(sequences([]policies.Batch{{N: 1 << 40, SumI: 1 << 45, SumL: 1 << 45}, {N: 1 << 40, SumI: 1, SumL: 1}})); n == 0 || n > maxSequences {
		t.Errorf("%d sequences", n)
	}
	if n := len(extendSet([]policies.Sequence{{Input: 1, Length: 2}, {Input: 3, Length: 4}}, 1, 1<<20)); n != maxSequences {
		t.Errorf("a million silent successors are %d requests", n)
	}
}
