package executor

import (
	"testing"
	"testing/synctest"

	"github.com/cascadeinfer/cascade/migrator/transfer"
)

// TestAdoptionsOutsideAdopt executes answers to an adoption that no call of Adopt waits for: Run's
// goroutine goes on.
func TestAdoptionsOutsideAdopt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &Executor{records: newRecords(Config{})}
		for _, k := range []transfer.ActionKind{transfer.AllowAdopt, transfer.DenyAdopt} {
			m.execute(transfer.Action{Kind: k})
		}
	})
}
