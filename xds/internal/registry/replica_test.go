package registry

import (
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// TestNote checks which of several faults of a report is shown: buckets that do not match
// come first, because they cost the flow; then what the report says itself; then a host
// that differs from the configured one.
func TestNote(t *testing.T) {
	const buckets = "flow ignored: its buckets are not those of the control plane; configure the same context for both"
	for _, c := range []struct {
		note, host  string
		sameBuckets bool
		want        string
	}{
		{"", "h", true, ""},
		{"", "", true, ""},
		{"", "other", true, "it reports that it is on host other, the configuration says h"},
		{"flow ignored: negative", "h", true, "flow ignored: negative"},
		{"flow ignored: negative", "other", true, "flow ignored: negative"},
		{"", "other", false, buckets},
		{"flow ignored: negative", "other", false, buckets},
	} {
		r := &Replica{Replica: policies.Replica{ID: "r", Host: "h"}}
		r.HandleReport(time.Unix(1, 0), &loadreport.Report{Note: c.note, Topology: &links.Topology{Host: c.host}}, c.sameBuckets)
		if got := r.Note(); got != c.want {
			t.Errorf("%+v: note %q", c, got)
		}
	}
}
