package demo

import (
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/inprocess"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// compared returns results with means of latency per token, and of two classes of prompts.
func compared(robin, placed, ours, short, long float64) []replay.Result {
	var out []replay.Result
	for i, mean := range []float64{robin, placed, ours} {
		r := replay.Result{Name: [...]string{"round robin", "placement alone", "cascade"}[i]}
		r.Engine.Normalised.Mean, r.Engine.TTFT.Mean = mean, 10*mean
		classes := [2]float64{mean, mean}
		if i == 2 {
			classes = [2]float64{short, long}
		}
		for c, bounds := range [...]policies.Tokens{0, 1024} {
			g := replay.Group{Low: bounds, High: 1024, Requests: 5}
			if c == 1 {
				g.High = policies.Unbounded
			}
			g.Normalised.Mean = classes[c]
			r.Engine.Classes = append(r.Engine.Classes, g)
		}
		out = append(out, r)
	}
	return out
}

// TestStory checks the three sentences at the end of a comparison.
func TestStory(t *testing.T) {
	at := func(t policies.Tokens) *policies.Tokens { return &t }
	two := []control.Replica{{ID: "a"}, {ID: "b"}}
	staged := control.Model{Stages: []control.Stage{
		{High: at(100), Replicas: two}, {Low: 100, High: at(1000), Replicas: two[:1]}, {Low: 1000, Replicas: two},
	}}
	one := control.Model{Stages: staged.Stages[:1]}
	moves := inprocess.MigrationStats{Moved: map[string]uint64{"live": 200, "reprompt": 12}}
	const needed Expectation = 1
	void := compared(1, 0.6, 0.5, 0.4, 0.7)
	void[1].Void = "late"
	const divided = "Cascade divided 5 replicas into 3 stages by length (0–100 on 2, 100–1,000 on 1, 1,000–∞ on 2) and migrated 212 running requests."
	for name, c := range map[string]struct {
		results []replay.Result
		plan    control.Model
		x       Expectation
		want    []string
	}{
		"best": {compared(0.1, 0.06, 0.05, 0.04, 0.07), staged, needed, []string{
			divided,
			"Its latency per output token is 50.0 ms on average, × 0.83 of placement alone, the best rival, and × 0.50 of round robin; first tokens come after 500 ms, × 0.83 and × 0.50.",
			"Of the 50 % that it saves on round robin, placement carries 40 % and stages with migrations 10 %; prompts of 1,024–∞ tokens pay for it, × 1.17 of placement alone.",
		}},
		"placement is better": {compared(0.1, 0.05, 0.06, 0.04, 0.04), staged, needed, []string{
			divided,
			"Its latency per output token is 60.0 ms on average, × 1.20 of placement alone, the best rival, and × 0.60 of round robin; first tokens come after 600 ms, × 1.20 and × 0.60.",
			"Placement alone saves 50 % of round robin's latency, and stages with migrations give 10 % back; no class of prompt lengths is served worse than by its best rival.",
		}},
		"round robin is better": {compared(0.05, 0.1, 0.2, 0.04, 0.04), staged, needed, []string{
			divided,
			"Its latency per output token is 200 ms on average, × 4.00 of round robin, the best rival, and × 2.00 of placement alone; first tokens come after 2.00 s, × 4.00 and × 2.00.",
			"Nothing is saved on round robin here: placement changes the latency by +100 %, stages with migrations by +200 %; no class of prompt lengths is served worse than by its best rival.",
		}},
		"stages alone help": {compared(0.1, 0.11, 0.05, 0.04, 0.04), staged, needed, []string{
			divided, "", "All of the 50 % that it saves on round robin come from stages with migrations; no class of prompt lengths is served worse than by its best rival.",
		}},
		"void":         {void, staged, needed, []string{divided, "Nothing can be compared: the machine was too busy for the figures of placement alone to count.", "Run it again with more idle CPU, or with fewer --replicas at a lower --rate."}},
		"one stage":    {compared(1, 1, 1, 1, 1), one, 0.24, []string{"No stage formed: requests are placed by price, which saves in one stage most of the 24 % of the cost that stages would save otherwise; a fleet is divided if one stage cannot carry its load.", "", "Nothing is saved on round robin here: placement changes the latency by +0 %, migrations by +0 %; no class of prompt lengths is served worse than by its best rival."}},
		"no gain":      {compared(1, 1, 1, 1, 1), one, 0, []string{"No stage formed: the planner predicts no gain for this traffic.", "", ""}},
		"not in time":  {compared(1, 1, 1, 1, 1), one, needed, []string{"No stage formed: the planner had not decided for them before the last request; more --requests give it time.", "", ""}},
		"interrupted":  {nil, one, needed, []string{"", "", ""}},
		"no latencies": {compared(0, 0, 0, 0, 0), staged, needed, []string{divided, "Nothing can be compared: the machine was too busy for the figures of round robin, placement alone, cascade to count.", ""}},
	} {
		got := Story(c.results, c.plan, moves, c.x)
		if len(got) != 3 {
			t.Errorf("%s: %d sentences", name, len(got))
			continue
		}
		for i, want := range c.want {
			if want != "" && got[i] != want {
				t.Errorf("%s: %q\nwant %q", name, got[i], want)
			}
		}
	}
}
