package handoff

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestScenarios runs every testdata/*.txt (package datadriven; -rewrite rewrites the
// expected output) on one machine. A command is an event, and its output the next action:
//
//	config no-handoff keeps-kv patience=10s   before the first event
//	start | kept | copied | frozen | opened | failed why
//	result                           how the move went
//
// Every event takes at=2s, ids=700, frozen, holder-lost and target-lost; time and ids stay
// as they are until they are given again.
func TestScenarios(t *testing.T) {
	kinds := map[string]EventKind{"start": Started, "kept": Kept, "copied": Copied, "frozen": Frozen, "opened": Opened, "failed": Failed}
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		cfg, ev := Config{Patience: 10 * time.Second}, Event{}
		var m *Machine
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			field := func(name string) (value string) {
				for _, arg := range d.CmdArgs {
					if arg.Key == name && len(arg.Vals) > 0 {
						value = arg.Vals[0]
					}
				}
				return value
			}
			duration := func(name string, into *time.Duration) {
				if s := field(name); s != "" {
					var err error
					if *into, err = time.ParseDuration(s); err != nil {
						d.Fatalf(t, "%v", err)
					}
				}
			}
			if d.Cmd == "config" {
				if cfg.KeepsKV = d.HasArg("keeps-kv"); d.HasArg("no-handoff") {
					cfg.NoHandoff = errors.New("no connector")
				}
				duration("patience", &cfg.Patience)
				return ""
			}
			if m == nil {
				m = New(cfg)
			}
			if d.Cmd == "result" {
				return fmt.Sprintf("handoff %v, failure %v", m.Handoff(), m.Failure())
			}
			duration("at", &ev.Now)
			if n, err := strconv.Atoi(field("ids")); err == nil {
				ev.IDs = n
			}
			ev.Kind, ev.Err = kinds[d.Cmd], nil
			if ev.Frozen = ev.Frozen || d.HasArg("frozen") || ev.Kind == Frozen; ev.Kind == Failed {
				ev.Err = errors.New(d.CmdArgs[0].Key)
			}
			ev.HolderLost, ev.TargetLost = ev.HolderLost || d.HasArg("holder-lost"), d.HasArg("target-lost")
			if ev.Kind == 0 {
				d.Fatalf(t, "no such event")
			}
			a := m.Step(ev)
			out := a.Kind.String()
			if a.Within != 0 {
				out += fmt.Sprint(" within ", a.Within)
			}
			if a.Renew {
				out += " renew"
			}
			if a.Discard {
				out += " discard"
			}
			if a.Err != nil {
				out += ": " + a.Err.Error()
			}
			return out
		})
	})
}
