package loadreport

import (
	"math"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/xds/api"
)

func goodRoute(transport, state string) *api.Route {
	return &api.Route{Transport: transport, Peer: "r1", State: state, Reason: "no such directory", BytesPerSecond: 1e9, Path: "one switch"}
}

// TestDecodeRoutes checks that the transports that a replica reports are kept, within
// bounds.
func TestDecodeRoutes(t *testing.T) {
	m := goodReport()
	m.Routes = []*api.Route{goodRoute("shm", RouteHeld), {Transport: "tcp", State: RouteReady}}
	r, err := Decode(m)
	if err != nil || r.Note != "" || len(r.Routes) != 2 || r.Routes[0] != (Route{"shm", "r1", RouteHeld, "no such directory", 1e9, "one switch"}) {
		t.Fatalf("%+v, %v", r, err)
	}
	m.Routes = []*api.Route{goodRoute("cuda", RouteUnsuited)}
	if r, err := Decode(m); err != nil || r.Note != "" || len(r.Routes) != 1 || r.Routes[0].State != RouteUnsuited {
		t.Errorf("%+v, %v", r, err)
	}
	for name, edit := range map[string]func(*api.Route){
		"no transport":   func(r *api.Route) { r.Transport = "" },
		"long transport": func(r *api.Route) { r.Transport = strings.Repeat("t", maxKeyword+1) },
		"long peer":      func(r *api.Route) { r.Peer = strings.Repeat("p", MaxName+1) },
		"no state":       func(r *api.Route) { r.State = "" },
		"another state":  func(r *api.Route) { r.State = "fine" },
		"rate":           func(r *api.Route) { r.BytesPerSecond = math.NaN() },
	} {
		bad := goodRoute("shm", RouteHeld)
		edit(bad)
		m := goodReport()
		m.Routes = []*api.Route{bad, goodRoute("tcp", RouteReady)}
		if r, err := Decode(m); err != nil || len(r.Routes) != 1 || r.Routes[0].Transport != "tcp" || !strings.Contains(r.Note, "routes") {
			t.Errorf("%s: %+v, %v", name, r.Routes, err)
		}
	}
	m.Routes = nil
	for range maxRoutes + 1 {
		long := goodRoute("tcp", RouteBroken)
		long.Reason = strings.Repeat("w", 2*maxReason)
		m.Routes = append(m.Routes, long)
	}
	if r, err := Decode(m); err != nil || len(r.Routes) != maxRoutes || len(r.Routes[0].Reason) != maxReason || !strings.Contains(r.Note, "routes") {
		t.Errorf("%d routes, %v", len(r.Routes), err)
	}
}
