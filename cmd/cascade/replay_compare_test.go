package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/progress"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// at returns a pointer to a length.
func at(t policies.Tokens) *policies.Tokens { return &t }

// threeStages returns a plan with cuts at 100 and 1000.
func threeStages(epoch policies.Epoch) control.Change {
	two := []control.DecidedReplica{{ID: "a"}, {ID: "b"}}
	return control.Change{Model: "m", Epoch: epoch, Reason: "better", Gain: 0.25, Stages: []control.DecidedStage{
		{Name: "s0", Low: 0, High: at(100), Replicas: two},
		{Name: "s1", Low: 100, High: at(1000), Replicas: two[:1]},
		{Name: "s2", Low: 1000, Replicas: two},
	}}
}

// TestAnnounceEachPlanOnce announces plans while the history loses its oldest entries.
func TestAnnounceEachPlanOnce(t *testing.T) {
	var out bytes.Buffer
	s := &settings{cli.App{Stderr: &out}}
	bar := progress.New(s.Stderr, "test", 10)
	printed := s.announceChanges(bar, []control.Change{threeStages(1), threeStages(2)}, 0)
	printed = s.announceChanges(bar, []control.Change{threeStages(2), threeStages(3)}, printed)
	if printed = s.announceChanges(bar, []control.Change{threeStages(3)}, printed); printed != 3 {
		t.Errorf("printed up to epoch %d", printed)
	}
	want := ""
	for _, epoch := range []string{"1", "2", "3"} {
		want += "  epoch " + epoch + ": better, predicted gain 25 %: 0–100 on 2, 100–1,000 on 1, 1,000–∞ on 2\n"
	}
	lines := ""
	for line := range strings.Lines(out.String()) {
		if i := strings.Index(line, "  epoch"); i >= 0 {
			lines += line[i:]
		}
	}
	if lines != want {
		t.Errorf("announced:\n%s\nwant:\n%s", lines, want)
	}
}

// TestComparedFleets checks that each fleet has only what it is named for.
func TestComparedFleets(t *testing.T) {
	got := map[string]config.Fleet{}
	for _, of := range comparedFleets {
		made, err := (&emulationFlags{replicas: 2, profile: "h200-llama-3.1-8b", context: 8192, speed: 1, tp: 1}).buildFleet()
		testkit.NoError(t, err)
		of.configure(&made.Fleet, config.MigrationReprompt)
		if errs := made.Fleet.Validate(); len(errs) > 0 {
			t.Fatal(errs[0])
		}
		got[of.name] = made.Fleet
	}
	plain, least, stages := got["round robin"], got["placement alone"], got["cascade"]
	if plain.Preset != config.PresetRoundRobin || plain.Migration.Mode != config.MigrationOff {
		t.Errorf("round robin: %s, %+v", plain.Preset, plain.Migration)
	}
	if least.Preset != config.PresetDefault || least.Migration.Mode != config.MigrationPlace || least.Planner.MinRequests != config.KeepFirstPlan {
		t.Errorf("placement alone: %s, %+v, %+v", least.Preset, least.Migration, least.Planner)
	}
	if stages.Preset != config.PresetDefault || stages.Migration.Mode != config.MigrationReprompt || stages.Planner.MinRequests == config.KeepFirstPlan {
		t.Errorf("cascade: %s, %+v, %+v", stages.Preset, stages.Migration, stages.Planner)
	}
}

func TestFinalPlan(t *testing.T) {
	var stages []control.Stage
	for _, st := range threeStages(7).Stages {
		stages = append(stages, control.Stage{Low: st.Low, High: st.High, Replicas: make([]control.Replica, len(st.Replicas))})
	}
	p := finalPlan([]presetResult{{}, {Status: control.Status{Models: []control.Model{{Name: "m", Epoch: 7, Stages: stages}}}}})
	if p.Epoch != 7 || len(p.Stages) != 3 || p.Stages[1].High != 1000 || p.Stages[2].High != policies.Unbounded || len(p.Stages[0].Replicas) != 2 {
		t.Errorf("%+v", p)
	}
}

func TestHeaders(t *testing.T) {
	h, err := parseHeaders([]string{"authorization: Bearer x:y", "x-a:b", "x-a: c"})
	if err != nil || h.Get("Authorization") != "Bearer x:y" || len(h["X-A"]) != 2 {
		t.Errorf("%v, %v", h, err)
	}
	for _, bad := range []string{"", "no colon", ": value"} {
		if _, err := parseHeaders([]string{bad}); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestReachable(t *testing.T) {
	for base, want := range map[string]string{
		"http://127.0.0.1:8080": "http://127.0.0.1:8080", "http://[::]:8080": "http://127.0.0.1:8080",
		"http://0.0.0.0:8080": "http://127.0.0.1:8080", "http://10.0.0.1:80": "http://10.0.0.1:80",
	} {
		if got := reachableURL(base); got != want {
			t.Errorf("%s: %s, want %s", base, got, want)
		}
	}
}

// TestCurl checks the quoting for a shell.
func TestCurl(t *testing.T) {
	got := curlCommand("http://h:1", config.Model{Name: `it's "m"`, Hosts: []string{"m.example"}}, true)
	want := `curl http://h:1/v1/completions -H 'host: m.example' -H 'content-type: application/json' -d '{"model":"it'\''s \"m\"","prompt":"Once upon a time","max_tokens":16}'`
	if got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}
