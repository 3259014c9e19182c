package migratord

import (
	"context"

	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
)

// frontendAdapter is the front end as the executor uses it; the executor is
// built first.
type frontendAdapter struct{ d *Daemon }

// Migrate hands a stream over. One of an earlier process that has ended is over, and
// what is meant for one that lives does not come here.
func (f frontendAdapter) Migrate(ctx context.Context, m frontend.Migration) (frontend.MigrationResult, error) {
	return f.d.frontend.Migrate(ctx, m)
}

func (f frontendAdapter) Holder(id string) (frontend.Holder, bool) { return f.d.frontend.Holder(id) }
func (f frontendAdapter) LocalLegs() []frontend.LocalLeg           { return f.d.frontend.LocalLegs() }
func (f frontendAdapter) AdvanceEpoch(id string, epoch policies.Epoch) {
	f.d.frontend.AdvanceEpoch(id, epoch)
}
