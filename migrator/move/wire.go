package move

import (
	"errors"
	"fmt"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// Limits of one message.
const (
	maxTransports = 16
	maxByte       = 255
	maxStall      = 3600e6 // microseconds; a front end cancels the migration long before that
)

// encode converts a message to protobuf. It shares the table's slices.
func encode(m Message) *api.Transfer {
	t := &api.Transfer{
		Kind: uint32(m.Kind), Seller: string(m.Deal.Seller), Number: m.Deal.Number, Request: m.Request, Epoch: uint64(m.Epoch),
		FrontEnd: string(m.FrontEnd), Target: string(m.Target), Mode: uint32(m.Mode), Round: m.Round, Failure: uint32(m.Failure),
		Fingerprint: m.Engine.Fingerprint, BlockTokens: m.Engine.BlockTokens,
		VersionMin: m.VersionMin, VersionMax: m.VersionMax, Transports: m.Transports,
		From: m.Span.From, Computed: m.Computed, Length: m.Length, IdsHash: uint64(m.Hash), Cached: m.Cached, Generation: m.Generation,
		StallMicros: uint64(max(0, m.Stall)), Connector: encodeConnector(m.Connector), TargetConnector: encodeConnector(m.TargetConnector), EngineBusy: m.EngineBusy,
	}
	t.Offers = transport.EncodeOffers(m.Offers)
	if m.Table != nil {
		t.Ids, t.Blocks, t.Sums = m.Table.IDs, m.Table.Blocks, m.Table.Sums
	}
	return t
}

// decode converts a message from protobuf and validates it. It shares the table's slices.
func decode(from, to policies.ReplicaID, t *api.Transfer) (Message, error) {
	m := Message{
		From: from, To: to, Deal: bidask.Deal{Seller: policies.ReplicaID(t.GetSeller()), Number: t.GetNumber()}, Request: t.GetRequest(), Epoch: policies.Epoch(t.GetEpoch()),
		FrontEnd: policies.ReplicaID(t.GetFrontEnd()), Target: policies.ReplicaID(t.GetTarget()), Round: t.GetRound(),
		Engine:     KVFormat{Fingerprint: t.GetFingerprint(), BlockTokens: t.GetBlockTokens()},
		VersionMin: t.GetVersionMin(), VersionMax: t.GetVersionMax(), Transports: t.GetTransports(),
		Stall: policies.Micros(min(t.GetStallMicros(), maxStall)), Connector: decodeConnector(t.GetConnector()), TargetConnector: decodeConnector(t.GetTargetConnector()), EngineBusy: t.GetEngineBusy(),
		Span: Span{From: t.GetFrom(), Computed: t.GetComputed(), Length: t.GetLength(), Hash: prefix.Hash(t.GetIdsHash()), Cached: t.GetCached(), Generation: t.GetGeneration()},
	}
	switch {
	case m.Deal.Seller == "":
		return m, errors.New("missing seller")
	case t.GetKind() > maxByte || t.GetMode() > maxByte || t.GetFailure() > maxByte:
		return m, fmt.Errorf("kind %d, mode %d, failure %d: must be at most %d", t.GetKind(), t.GetMode(), t.GetFailure(), maxByte)
	case len(m.Transports) > maxTransports:
		return m, fmt.Errorf("%d transports: must be at most %d", len(m.Transports), maxTransports)
	}
	m.Kind, m.Mode, m.Failure = Kind(t.GetKind()), Mode(t.GetMode()), Failure(t.GetFailure())
	var err error
	if m.Offers, err = transport.DecodeOffers(from, t.GetOffers()); err != nil {
		return m, err
	}
	if m.Kind == Round || m.Kind == Manifest {
		m.Table = &Table{IDs: t.GetIds(), Blocks: t.GetBlocks(), Sums: t.GetSums()}
	}
	return m, nil
}

// encodeConnector converts a KV connector to protobuf, nil if nothing is known of it.
func encodeConnector(c engineinfo.KVConnector) *api.KVConnector {
	if c == (engineinfo.KVConnector{}) {
		return nil
	}
	return &api.KVConnector{Presence: uint32(c.Presence), Name: c.Name, EngineVersion: c.Version, Layout: c.Layout}
}

// decodeConnector converts a KV connector from protobuf. A peer of an older version states none.
func decodeConnector(c *api.KVConnector) engineinfo.KVConnector {
	return engineinfo.KVConnector{
		Presence: engineinfo.Presence(min(c.GetPresence(), maxByte)), Name: c.GetName(), Version: c.GetEngineVersion(), Layout: c.GetLayout(),
	}.Bounded()
}
