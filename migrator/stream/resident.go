package stream

import (
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// Resident is a request that runs on the own engine, whoever owns it.
type Resident struct {
	Request policies.Request // ID is the stream's at its front
	Leg     string           // the engine's name for it: "<stream>#<epoch>"
	Front   policies.ReplicaID
	Epoch   policies.Epoch
	// Fixed says why the request cannot move, policies.MayMove when it can.
	Fixed policies.Reason
	Since time.Time // when it came to this engine
}

// Residents returns what runs on the own engine: own clients' streams and
// peers' legs, in no order.
func (f *Front) Residents() []Resident { return nil }
