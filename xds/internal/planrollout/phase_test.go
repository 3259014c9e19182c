package planrollout

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// newLabelledSnapshot returns a snapshot for a label such as "A1": the letters stand for
// its routes, the digits for its endpoints.
func newLabelledSnapshot(t *testing.T, label string) *Snapshot {
	t.Helper()
	r, err := resources.Encode(resources.RouteType, resources.RouteName, &routev3.RouteConfiguration{
		Name: strings.TrimRight(label, "0123456789"),
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := resources.NewSet(r)
	if err != nil {
		t.Fatal(err)
	}
	return &Snapshot{Set: s}
}

// TestPhaseMachine runs testdata/phases/*.txt (package datadriven; -rewrite rewrites the
// expected output): each command changes the machine and prints its state; reset starts a
// new one.
func TestPhaseMachine(t *testing.T) {
	datadriven.Walk(t, "testdata/phases", func(t *testing.T, path string) {
		m, names := new(phaseMachine), make(map[*Snapshot]string)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			label := ""
			if len(d.CmdArgs) > 0 {
				label = d.CmdArgs[0].Key
			}
			snapshot := newLabelledSnapshot(t, label)
			names[snapshot] = label
			switch d.Cmd {
			case "target":
				m.setTarget(snapshot)
			case "revert":
				m.revertTo(snapshot)
			case "advance":
				m.advance()
			case "finish":
				m.finish()
			case "abort":
				m.abort()
			case "reset":
				m = new(phaseMachine)
			default:
				d.Fatalf(t, "unknown command %q", d.Cmd)
			}
			if m.isEmpty() {
				return ""
			}
			l := m.layers()
			out := fmt.Sprintf("%s: routes %s, endpoints %s", m.phase, names[l.routes], names[l.newest])
			for _, l := range l.live {
				out += " + " + names[l]
			}
			if m.isFull() {
				out += " (full)"
			}
			return out + "\n"
		})
	})
}
