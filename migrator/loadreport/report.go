package loadreport

import (
	"math"
	"strings"

	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
)

// Encode converts a front end's state to a report. Engines list their contexts by model. The caller adds what else it
// knows.
func Encode(model string, s frontend.Status) *api.LoadReport {
	edges := make([]int64, len(s.Flow.Edges))
	for i, e := range s.Flow.Edges {
		edges[i] = int64(e)
	}
	snapshot := make([]*api.Batch, len(s.Snapshot))
	for i, b := range s.Snapshot {
		snapshot[i] = &api.Batch{N: b.N, SumInput: b.SumI, SumInput2: b.SumI2, SumLength: b.SumL}
	}
	return &api.LoadReport{
		Load: &api.Load{
			Running: uint32(s.Load.Running), Waiting: uint32(s.Load.Waiting),
			HeldTokens: int64(s.Load.Held), PromisedTokens: int64(s.Load.Promised), IterationSeconds: s.Load.Iteration,
			Engine: encodeEngineLoad(s.Load.Engine),
		},
		Flow: &api.Flow{
			Edges: edges, Arrivals: s.Flow.Arrivals, Tokens: s.Flow.Tokens, Reads: s.Flow.Reads, Prefill: s.Flow.Prefill,
			Prefill2: s.Flow.Prefill2, Weight: s.Flow.Weight, Crossings: s.Flow.Crossings, Seen: s.Flow.Seen,
		},
		Snapshot:      snapshot,
		EngineReady:   s.EngineReady,
		EngineHung:    s.EngineHung,
		Engine:        encodeEngine(s.Engine, model),
		EngineProblem: s.EngineProblem,
		Draining:      s.Draining,
		BytesPerToken: s.BytesPerToken,
		EstimateError: s.EstimateError,
		KnownPrefixes: &api.KnownPrefixes{Source: s.Prefixes.Source.String(), Blocks: int64(s.Prefixes.Blocks)},

		RequestsRefused: s.TurnedAway,
		Service:         &api.Service{Failed: s.Service.Failed, FirstToken: s.Service.FirstToken[:], PerToken: s.Service.PerToken[:], Received: s.Received},
	}
}

// encodeEngineLoad converts what the engine reports of its load; nil for nothing.
func encodeEngineLoad(e policies.EngineLoad) *api.EngineLoad {
	if e == (policies.EngineLoad{}) {
		return nil
	}
	return &api.EngineLoad{
		CapacityTokens: int64(e.Capacity), KvUsedTokens: int64(e.KVUsed),
		Running: count(e.Running), Waiting: count(e.Waiting), Preemptions: e.Preemptions,
	}
}

// encodeEngine converts what is known of the engine; nil while it has not been asked.
func encodeEngine(i engineinfo.Info, model string) *api.Engine {
	if i.Start == 0 {
		return nil
	}
	return &api.Engine{
		Version: i.Version, Context: int64(i.Context(model)), BlockTokens: int64(i.BlockTokens), KvTokens: int64(i.KVTokens),
		Connector: i.Connector.String(), TokensPerChunk: count(i.TokensPerChunk), DraftTokens: count(i.DraftTokens), PromptDetails: i.PromptDetails.String(),
		RefusesTokenIds: strings.Join(i.RefusesTokenIDs, ", "),
	}
}

// count converts a count to its wire type.
func count(n int) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }
