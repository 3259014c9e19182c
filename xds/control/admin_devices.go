package control

import (
	"net/http"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/xds/fleet"
)

// Devices is what GET /devices answers: where the replicas' KV caches are, as
// they reported. The link between two of them follows by links.Paths.
type Devices struct {
	Models []DeviceModel `json:"models"`
}

// DeviceModel is one model of a Devices.
type DeviceModel struct {
	Name string `json:"name"`
	// Links are the rates, in bytes per second, by which migrations are priced
	// where replicas report no links; absent where links make no difference.
	Links    *links.Rates `json:"links,omitempty"`
	Replicas []Device     `json:"replicas"`
}

// Device is one replica of a Devices.
type Device struct {
	Replica policies.ReplicaID `json:"replica"`
	// Stage is its stage as in cluster names; "" for none.
	Stage    string         `json:"stage,omitempty"`
	Topology links.Topology `json:"topology"`
	// Transports are those of its reports; see Replica.Transports.
	Transports []Transport `json:"transports,omitempty"`
	Note       string      `json:"note,omitempty"` // what is wrong with its reports
}

// devices answers GET /devices.
func (c *Control) devices(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, devicesOf(c.fleet.Snapshot()))
}

func devicesOf(s *fleet.Snapshot) Devices {
	out := Devices{Models: []DeviceModel{}}
	if s == nil {
		return out
	}
	for _, m := range s.Models {
		model := DeviceModel{Name: m.Name, Replicas: []Device{}}
		if m.Links != (links.Rates{}) {
			model.Links = &m.Links
		}
		for _, r := range m.Replicas {
			d := Device{Replica: r.ID, Topology: r.Topology, Transports: r.Routes, Note: r.Note}
			if r.Stage >= 0 {
				d.Stage = stageOf(r.Stage, m.Plan.Stages[r.Stage]).Name
			}
			model.Replicas = append(model.Replicas, d)
		}
		out.Models = append(out.Models, model)
	}
	return out
}
