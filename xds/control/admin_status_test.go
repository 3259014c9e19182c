package control

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit/plantest"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/xds/fleet"
)

// TestStageReasons checks the reasons of stages as JSON: of ones beside others, of one that must be,
// of the only one, and of a plan whose reasons are not known.
func TestStageReasons(t *testing.T) {
	for _, tc := range []struct {
		plan    string
		reasons []partition.StageReason
		want    string
	}{
		{"a | b", []partition.StageReason{{Requests: 0.75, Tokens: 0.5, Neighbour: 1, Rise: 0.25}, {Requests: 0.25, Tokens: 0.5, Neighbour: 0, Rise: math.Inf(1)}},
			`[{"request_share":0.75,"token_share":0.5,"merged_with":"s1","cost_rise":0.25},{"request_share":0.25,"token_share":0.5,"merged_with":"s0"}]`},
		{"a b", []partition.StageReason{{Requests: 1, Tokens: 1, Neighbour: -1}}, `[{"request_share":1,"token_share":1,"cost_rise":0}]`},
		{"a b", nil, `[null]`},
	} {
		var got []*StageReason
		for _, st := range modelOf(fleet.ModelState{Plan: plantest.Parse(tc.plan), StageReasons: tc.reasons}, time.Time{}).Stages {
			got = append(got, st.Reason)
		}
		text, err := json.Marshal(got)
		if err != nil || string(text) != tc.want {
			t.Errorf("%s: %s, %v, want %s", tc.plan, text, err, tc.want)
		}
	}
}
