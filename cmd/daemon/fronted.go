package daemon

import (
	"context"

	"github.com/cascadeinfer/cascade/migrator/stream"
	"github.com/cascadeinfer/cascade/policies"
)

// fronted is the front as the mover knows it, which is built before the front.
type fronted struct{ d *Daemon }

// Move hands a stream over. One of an earlier process that has ended is over, and
// what is meant for one that lives does not come here.
func (f fronted) Move(ctx context.Context, m stream.Move) (stream.Moved, error) {
	return f.d.front.Move(ctx, m)
}

func (f fronted) Holder(id string) (stream.Holding, bool) { return f.d.front.Holder(id) }
func (f fronted) Residents() []stream.Resident            { return f.d.front.Residents() }
func (f fronted) Advance(id string, epoch policies.Epoch) { f.d.front.Advance(id, epoch) }
