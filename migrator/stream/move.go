package stream

import (
	"context"
	"errors"

	"github.com/cascadeinfer/cascade/migrator/token"
	"github.com/cascadeinfer/cascade/policies"
)

// What Move returns, beside errors after which the stream goes on at From.
var (
	// ErrUnknown says that there is no such stream, or that it is over: nobody
	// wants its tokens any more.
	ErrUnknown = errors.New("no such stream, or it is over")
	// ErrStale says that the stream is not at that holder in that epoch, or that
	// a move of it is under way.
	ErrStale = errors.New("the stream is not at that holder in that epoch")
)

// Move asks for a stream to go on at another replica.
type Move struct {
	Stream string             // its Request's ID
	From   policies.ReplicaID // who holds it
	Epoch  policies.Epoch     // in which epoch
	To     Target
	// ID names the reservation at To that holds the stream's KV; "" means that
	// To is given all token ids and computes it anew.
	ID string
	// Length is how many ids the stream has where From stopped, prompt included,
	// and Hash is theirs. For a move with an ID only.
	Length int
	Hash   token.Hash
	// Cached is how many prompt tokens the first leg found in its engine's
	// cache, −1 for unknown. The usage at the stream's end tells it.
	Cached int
}

// Holding says where a stream runs.
type Holding struct {
	Replica policies.ReplicaID
	Epoch   policies.Epoch
	// Pending is true while a move is under way: the holder may be about to
	// change.
	Pending bool
}

// Move moves a stream and returns when it has, or when it has failed. The epoch
// is the one in which the stream goes on: m.Epoch+1 at m.To when the error is
// nil; ErrUnknown and ErrStale come without one; after any other error the
// stream goes on at m.From in m.Epoch+2, as if nothing had been. ctx bounds the
// whole; there is a bound of its own besides (Config.MoveTimeout).
func (f *Front) Move(ctx context.Context, m Move) (policies.Epoch, error) {
	return 0, ErrUnknown
}

// Holder returns where a stream of this front's clients runs; false when there
// is none of that id.
func (f *Front) Holder(stream string) (Holding, bool) { return Holding{}, false }

// Holders returns the peers that hold streams of this front's clients.
func (f *Front) Holders() []policies.ReplicaID { return nil }

// Fronts returns the peers whose clients' streams run on the own engine.
func (f *Front) Fronts() []policies.ReplicaID { return nil }

// Lost says that a peer is gone: streams that it holds are rescued, and those
// that run here for its clients end.
func (f *Front) Lost(peer policies.ReplicaID) {}
