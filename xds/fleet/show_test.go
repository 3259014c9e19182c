package fleet

import (
	"cmp"
	"fmt"
	"reflect"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit/plantest"
	"github.com/cascadeinfer/cascade/xds/resources"
)

func (w *world) show(names []string) {
	var first *Snapshot
	for _, name := range names {
		p := w.planes[name]
		now, last := p.Snapshot(), p.published()
		if last == nil {
			fmt.Fprintf(&w.out, "%s publishes nothing\n", name)
			continue
		}
		role := map[bool]string{true: "leads", false: "follows " + cmp.Or(now.Leadership.Holder, "no control plane")}[now.Leadership.Leading]
		fmt.Fprintf(&w.out, "%s %s, epoch %d: %s\n ", name, role, last.Epoch, plantest.Format(last.Models[0].Plan))
		var connected, notes []string
		m := now.Models[0]
		for _, r := range m.Replicas {
			if r.Connected {
				connected = append(connected, string(r.ID))
			}
			if r.Residents > 0 {
				notes = append(notes, fmt.Sprintf("%s has %d requests", r.ID, r.Residents))
			}
			if r.Health == resources.Unhealthy {
				notes = append(notes, fmt.Sprintf("%s for %v: %s", r.ID, now.Time.Sub(r.HealthSince).Round(time.Second), r.Reason))
			}
			if r.Drained {
				notes = append(notes, fmt.Sprintf("%s is drained, in stage %d", r.ID, r.Stage))
			}
		}
		if m.Pin != nil {
			notes = append(notes, "pinned by "+m.Pin.By)
		}
		if now.Leadership.NameTaken {
			notes = append(notes, "another control plane has its name")
		}
		if h := now.Held; h != nil {
			notes = append(notes, "held: "+h.Text)
		}
		for _, fault := range p.StoreFaults() {
			notes = append(notes, fmt.Sprintf("store: %s fails for %v", fault.Operation, time.Since(fault.Since).Round(time.Second)))
		}
		if accepted, refused := p.ReportCounts(); accepted+refused > 0 {
			notes = append(notes, fmt.Sprintf("%d reports accepted, %d streams refused", accepted, refused))
		}
		fmt.Fprintf(&w.out, "%s; connected %v; %s\n", routing(last), connected, m.Reason)
		for _, n := range notes {
			fmt.Fprintf(&w.out, "  %s\n", n)
		}
		if first == nil {
			first = last
		}
		v, want := last.View(resources.Settings{}), first.View(resources.Settings{})
		if !reflect.DeepEqual(v, want) {
			fmt.Fprintf(&w.out, "%s publishes something else than %s:\n%+v\n%+v\n", name, names[0], v, want)
		}
		set, err := resources.Build(v)
		wanted, _ := resources.Build(want)
		if err != nil || !set.Equal(wanted) {
			fmt.Fprintf(&w.out, "the resources differ: %v\n", err)
		}
	}
}
