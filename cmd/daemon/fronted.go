package daemon

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/migrator/stream"
	"github.com/cascadeinfer/cascade/policies"
)

// fronted is the front as the mover knows it, which is built before the front.
type fronted struct{ d *Daemon }

// errElder says that a stream may be one of the process before this one, which
// still serves it and does not hear what is sent to the replica.
var errElder = errors.New("the stream is of an earlier process of this replica")

// elder reports whether a stream of that id began before this process: ids count
// on from the time at which their front was made.
func (f fronted) elder(id string) bool {
	n, err := strconv.ParseUint(id[strings.LastIndexByte(id, '/')+1:], 10, 64)
	return err == nil && n < uint64(f.d.born.UnixMicro())
}

// Move leaves an earlier process's stream where it is.
func (f fronted) Move(ctx context.Context, m stream.Move) (stream.Moved, error) {
	moved, err := f.d.front.Move(ctx, m)
	if err == stream.ErrUnknown && f.elder(m.Stream) {
		return stream.Moved{Epoch: m.Epoch}, errElder
	}
	return moved, err
}

// Holder says of an earlier process's stream that nothing is decided: to call it
// over would end it.
func (f fronted) Holder(id string) (stream.Holding, bool) {
	h, ok := f.d.front.Holder(id)
	if !ok && f.elder(id) {
		return stream.Holding{Pending: true}, true
	}
	return h, ok
}

func (f fronted) Residents() []stream.Resident            { return f.d.front.Residents() }
func (f fronted) Advance(id string, epoch policies.Epoch) { f.d.front.Advance(id, epoch) }
