package migratord

import (
	"context"

	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
)

// frontendAdapter gives the executor access to the front end, which New builds after the executor.
type frontendAdapter struct{ d *Daemon }

// Migrate migrates a stream. A stream of an earlier process that has ended is over; messages for an
// earlier process that still runs do not reach this method.
func (f frontendAdapter) Migrate(ctx context.Context, m frontend.Migration) (frontend.MigrationResult, error) {
	return f.d.frontend.Migrate(ctx, m)
}

func (f frontendAdapter) Holder(id string) (frontend.Holder, bool) { return f.d.frontend.Holder(id) }
func (f frontendAdapter) LocalLegs() []frontend.LocalLeg           { return f.d.frontend.LocalLegs() }
func (f frontendAdapter) FreezeLeg(name string, frozen bool)       { f.d.frontend.FreezeLeg(name, frozen) }
func (f frontendAdapter) KVConnector() (engineinfo.KVConnector, bool) {
	return f.d.frontend.KVConnector()
}
func (f frontendAdapter) AdvanceEpoch(id string, epoch policies.Epoch) {
	f.d.frontend.AdvanceEpoch(id, epoch)
}
