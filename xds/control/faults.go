package control

import (
	"fmt"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Fault is something that does not work, as this control plane sees it. GET /status lists
// all faults, and the metric cascade_fault has one sample for each.
type Fault struct {
	// Kind is one of the constants below, and Object what is concerned: an operation, a
	// control plane, a model or a replica.
	Kind   string `json:"kind"`
	Object string `json:"object"`
	Text   string `json:"text"` // what is wrong, and what to do
	// Seconds is how long it has lasted; absent: unknown.
	Seconds float64 `json:"seconds,omitempty"`
	// NotReady says that requests or operators' orders fail because of it: /readyz then
	// answers 503, and "cascade status" exits with 1.
	NotReady bool `json:"not_ready,omitempty"`
}

// The kinds of faults.
const (
	FaultStore       = "store"              // an operation of the plan store fails
	FaultLeader      = "no_leader"          // no control plane plans
	FaultName        = "name"               // another control plane has the name of this one
	FaultPublish     = "publish"            // the newest state is not published
	FaultPlane       = "control_plane"      // another control plane writes no notes
	FaultFile        = "fleet_file"         // a fleet file is refused, here ("refused") or by another control plane
	FaultFileDiffers = "fleet_file_differs" // another control plane has another fleet file in force
	FaultRemoval     = "removal"            // a fleet file is not applied until an operator confirms what it removes
	FaultModel       = "model"              // no replica of it takes requests
	FaultReplica     = "replica"            // it is unhealthy
)

// fleetFaults lists the faults of a fleet, the most serious first.
func fleetFaults(s *fleet.Snapshot, stores []fleet.StoreFault, now time.Time) (out []Fault) {
	if s != nil {
		out = append(out, modelFaults(s, now)...)
	}
	for _, f := range stores {
		out = append(out, Fault{
			Kind: FaultStore, Object: string(f.Operation), Text: f.Consequence() + ": " + f.Err.Error(),
			Seconds: now.Sub(f.Since).Seconds(), NotReady: f.Operation != fleet.StoreCounters,
		})
	}
	if s == nil {
		return out
	}
	if l := s.Leadership; l.NameTaken {
		out = append(out, Fault{Kind: FaultName, Object: l.Self, Text: "another control plane of the store has this name: give each a name of its own, with control.name or --name"})
	} else if l.Shared && l.Holder == "" && l.LastHolder != "" {
		out = append(out, Fault{
			Kind: FaultLeader, Object: l.LastHolder, Seconds: now.Sub(l.Since).Seconds(),
			Text: fmt.Sprintf("no control plane leads; the last one, %s, did not renew its lease: plans do not change until one can write the store", l.LastHolder),
		})
	}
	if h := s.Held; h != nil {
		out = append(out, Fault{
			Kind: FaultRemoval, Object: h.Digest, Seconds: now.Sub(h.Since).Seconds(),
			Text: "the fleet file is not applied, because it removes " + h.Text + "; if that is meant, run \"cascade config confirm\", else mend the file",
		})
	}
	for _, m := range s.Models {
		for _, r := range m.Replicas {
			if r.Health == resources.Unhealthy {
				out = append(out, Fault{Kind: FaultReplica, Object: string(r.ID), Text: r.HealthReason, Seconds: now.Sub(r.HealthSince).Seconds()})
			}
		}
	}
	return out
}

// modelFaults lists the models without a replica that takes requests.
func modelFaults(s *fleet.Snapshot, now time.Time) (out []Fault) {
	for _, m := range s.Models {
		var states []string
		var since time.Time
		for _, r := range m.Replicas {
			if r.Health == resources.Healthy {
				states = nil
				break
			}
			if len(states) < shownReplicas {
				states = append(states, fmt.Sprintf("%s is %s", r.ID, r.Health))
			}
			if r.HealthSince.After(since) {
				since = r.HealthSince
			}
		}
		if len(states) == 0 {
			continue
		}
		if more := len(m.Replicas) - len(states); more > 0 {
			states = append(states, fmt.Sprintf("and %d more", more))
		}
		out = append(out, Fault{
			Kind: FaultModel, Object: m.Name, Seconds: now.Sub(since).Seconds(), NotReady: true,
			Text: "no replica takes requests: " + strings.Join(states, ", "),
		})
	}
	return out
}

// shownReplicas is how many replicas a fault names.
const shownReplicas = 8

// faults lists the present faults.
func (c *Control) faults(now time.Time) []Fault {
	out := fleetFaults(c.fleet.Snapshot(), c.fleet.StoreFaults(), now)
	out = append(out, c.planes.faults(now)...)
	if err := c.publisher.Status().Err; err != nil {
		out = append(out, Fault{Kind: FaultPublish, Object: "resources", Text: "the newest state is not published: " + err.Error()})
	}
	return out
}

// notReady returns why this control plane is not ready, one reason a line; "" when it is.
func (c *Control) notReady() string {
	var lines []string
	if !c.Ready() {
		lines = append(lines, "no plan published yet")
	}
	for _, f := range c.faults(time.Now()) {
		if f.NotReady {
			lines = append(lines, f.Kind+" "+f.Object+": "+f.Text)
		}
	}
	return strings.Join(lines, "\n")
}
