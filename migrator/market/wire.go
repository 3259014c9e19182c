package market

import (
	"math"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// encode converts a message to an envelope.
func encode(msg bidask.Message) *api.Envelope {
	m := &api.Market{
		Kind: uint32(msg.Kind), Seller: string(msg.Deal.Seller), Number: msg.Deal.Number, Load: int64(msg.Load), StartMicros: int64(msg.Start),
	}
	if h := msg.Migration; h != (policies.Migration{}) {
		m.Handover = &api.Handover{Request: h.Request, Length: int64(h.Length), Cause: uint32(h.Cause)}
	}
	return &api.Envelope{Body: &api.Envelope_Market{Market: m}}
}

// decode converts a message from the wire; it returns false if the message is invalid or
// of a kind that this version does not know.
func decode(from, to policies.ReplicaID, m *api.Market) (bidask.Message, bool) {
	h := m.GetHandover()
	msg := bidask.Message{
		From: from, To: to, Deal: bidask.Deal{Seller: policies.ReplicaID(m.GetSeller()), Number: m.GetNumber()},
		Migration: policies.Migration{Request: h.GetRequest(), Length: policies.Tokens(h.GetLength())},
		Load:      policies.Tokens(m.GetLoad()), Start: policies.Micros(m.GetStartMicros()),
	}
	if m.GetKind() == 0 || m.GetKind() > uint32(bidask.Drop) || h.GetCause() > math.MaxUint8 || msg.Deal.Seller == "" || msg.Load < 0 || msg.Start < 0 || msg.Migration.Length < 0 {
		return bidask.Message{}, false
	}
	msg.Kind, msg.Migration.Cause = bidask.MessageKind(m.GetKind()), policies.MigrationCause(h.GetCause())
	if (msg.Kind == bidask.Ask || msg.Kind == bidask.Confirm) && msg.Migration.Request == "" {
		return bidask.Message{}, false
	}
	return msg, true
}
