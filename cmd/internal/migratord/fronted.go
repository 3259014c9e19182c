package migratord

import (
	"context"

	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
)

// fronted is the front as the mover knows it, which is built before the front.
type fronted struct{ d *Daemon }

// Migrate hands a stream over. One of an earlier process that has ended is over, and
// what is meant for one that lives does not come here.
func (f fronted) Migrate(ctx context.Context, m frontend.Migration) (frontend.MigrationResult, error) {
	return f.d.front.Migrate(ctx, m)
}

func (f fronted) Holder(id string) (frontend.Holder, bool)     { return f.d.front.Holder(id) }
func (f fronted) LocalLegs() []frontend.LocalLeg               { return f.d.front.LocalLegs() }
func (f fronted) AdvanceEpoch(id string, epoch policies.Epoch) { f.d.front.AdvanceEpoch(id, epoch) }
