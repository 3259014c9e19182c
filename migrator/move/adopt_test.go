package move

import (
	"testing"
	"testing/synctest"
)

// TestAdoptionsOutsideAdopt executes answers to an adoption that no call of Adopt waits for: Run's
// goroutine goes on.
func TestAdoptionsOutsideAdopt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &Executor{records: newRecords(Config{})}
		for _, k := range []ActionKind{AllowAdopt, DenyAdopt} {
			m.execute(Action{Kind: k})
		}
	})
}
