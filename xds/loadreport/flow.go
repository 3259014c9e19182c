package loadreport

import (
	"errors"
	"fmt"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
)

func decodeFlow(m *api.Flow) (policies.Flow, error) {
	if len(m.GetEdges()) > MaxEdges {
		return policies.Flow{}, fmt.Errorf("edges: more than %d", MaxEdges)
	}
	f := policies.Flow{
		Edges:    make([]policies.Tokens, len(m.GetEdges())),
		Arrivals: m.GetArrivals(), Tokens: m.GetTokens(), Reads: m.GetReads(),
		Prefill: m.GetPrefill(), Prefill2: m.GetPrefill2(),
		Weight: m.GetWeight(), Crossings: m.GetCrossings(),
		Seen: m.GetSeen(),
	}
	for i, e := range m.GetEdges() {
		f.Edges[i] = policies.Tokens(e)
	}
	return f, CheckFlow(f)
}

// CheckFlow returns an error for a flow that is invalid or beyond the bounds. A flow
// without edges is empty and valid.
func CheckFlow(f policies.Flow) error {
	if f.Seen > MaxSeen {
		return fmt.Errorf("seen: more than %d requests", int64(MaxSeen))
	}
	if len(f.Edges) == 0 {
		for _, column := range f.Columns() {
			if len(column) > 0 {
				return errors.New("rates without edges")
			}
		}
		return nil
	}
	if len(f.Edges) > MaxEdges {
		return fmt.Errorf("edges: more than %d", MaxEdges)
	}
	if err := f.Validate(); err != nil {
		return err
	}
	if f.Edges[len(f.Edges)-1] > MaxTokens {
		return fmt.Errorf("edges: above %d", int64(MaxTokens))
	}
	for _, column := range f.Columns() {
		for _, x := range column {
			if x > MaxRate {
				return errors.New("a rate is above 1e18 per second")
			}
		}
	}
	return nil
}
