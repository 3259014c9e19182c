package control

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// TestDevices checks that GET /devices returns the topology and transports that
// replicas report.
func TestDevices(t *testing.T) {
	f := newFakeFleet(t, 2)
	r := fastRules()
	r.Models[0].TokenBytes, r.Models[0].Links = 1e5, links.Rates{BetweenHosts: 25 * links.Gigabyte}
	c := startControl(t, Config{Rules: r, Replicas: f.list})
	f.replicas[0].setReport(func(m *api.LoadReport) {
		m.Topology = loadreport.EncodeTopology(links.Topology{Known: true, TCP: 12, GPU: &links.GPU{Index: 3, UUID: "u"}})
		m.Routes = []*api.Route{{Transport: "tcp", Peer: "r1", State: "ready", BytesPerSecond: 5, Path: "loopback"}}
	})
	f.startReports(t, c)
	d := testkit.WaitForValue(t, "the topology", func() (d Devices) {
		code, body := get(t, c, "/devices")
		if err := json.Unmarshal([]byte(body), &d); err != nil || code != http.StatusOK {
			t.Fatalf("%d, %v: %s", code, err, body)
		}
		return d
	}, func(d Devices) bool { return len(d.Models) > 0 && d.Models[0].Replicas[0].Topology.Known })
	m := d.Models[0]
	if m.Links == nil || m.Links.BetweenHosts != 25*links.Gigabyte || len(m.Replicas) != 2 {
		t.Fatalf("%+v", m)
	}
	if got := m.Replicas[0]; got.Replica != "r0" || got.Stage != "s0" || got.Topology.GPU == nil || got.Topology.GPU.UUID != "u" || len(got.Transports) != 1 || got.Transports[0].Path != "loopback" {
		t.Errorf("%+v", got)
	}
	if got := m.Replicas[1]; got.Topology.Known || got.Transports != nil {
		t.Errorf("replica without a report: %+v", got)
	}
	if d := devicesOf(nil); d.Models == nil {
		t.Error("models is null without a plan")
	}
}
