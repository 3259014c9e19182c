package console

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/console"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// TestTimeToCause opens the page once for each kind of fault, and measures the time until it shows the
// object, the cause and the remedy. It prints a table.
func TestTimeToCause(t *testing.T) {
	testkit.SkipSlow(t)
	kinds := []string{
		control.FaultModel, control.FaultReplica, control.FaultStore, control.FaultPlane, control.FaultLeader, control.FaultName, control.FaultFile,
		control.FaultFileDiffers, control.FaultRemoval, control.FaultRollout, control.FaultPublish, control.FaultPolicy, control.FaultClients, control.FaultAudit,
		loadreport.ProblemCapacity, loadreport.ProblemDescriptors, loadreport.ProblemMemory, loadreport.ProblemCertificate,
	}
	source := &scripted{view: fleetView(100)}
	s := newSite(t, source)
	b := openTab(t, 1440, 900)
	var times []time.Duration
	t.Log("| fault | title | from opening the page to cause and remedy |")
	for i, kind := range kinds {
		cause := fmt.Sprintf("cause %d of the fault", i)
		source.edit(func(v *fakePage) {
			v.Status.Faults = []control.Fault{{Kind: kind, Object: fmt.Sprint("object-", i), Text: cause, Seconds: 3}}
		})
		a, ok := console.AdviceFor(kind)
		if !ok {
			t.Errorf("%s: no advice", kind)
		}
		start := time.Now()
		b.open(s.url())
		b.waitFor("the cause", fmt.Sprintf(`[%q, %q, %q, %q].every(text => document.querySelector("#faults").innerText.includes(text)) && document.querySelector("#faults").checkVisibility() && document.querySelector("#faults").getBoundingClientRect().bottom < innerHeight`,
			cause, fmt.Sprint("object-", i), a.Title, a.Action))
		times = append(times, time.Since(start))
		t.Logf("| %s | %s | %d ms |", kind, a.Title, times[i].Milliseconds())
	}
	b.noErrors()
	slices.Sort(times)
	t.Logf("%d faults: median %v, longest %v", len(times), times[len(times)/2].Round(time.Millisecond), times[len(times)-1].Round(time.Millisecond))
}
