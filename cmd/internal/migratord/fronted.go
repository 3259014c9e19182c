package migratord

import (
	"context"

	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
)

// fronted is the front as the mover knows it, which is built before the front.
type fronted struct{ d *Daemon }

// Move hands a stream over. One of an earlier process that has ended is over, and
// what is meant for one that lives does not come here.
func (f fronted) Move(ctx context.Context, m frontend.Move) (frontend.Moved, error) {
	return f.d.front.Move(ctx, m)
}

func (f fronted) Holder(id string) (frontend.Holding, bool) { return f.d.front.Holder(id) }
func (f fronted) Residents() []frontend.Resident            { return f.d.front.Residents() }
func (f fronted) Advance(id string, epoch policies.Epoch)   { f.d.front.Advance(id, epoch) }
