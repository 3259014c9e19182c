package proxy

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/cascadeinfer/cascade/internal/httpserver/servertest"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestAttackEarlyAnswers checks every answer that the proxy gives, or passes on, before
// a request's body has arrived.
func TestAttackEarlyAnswers(t *testing.T) {
	f := newFleet(t, 4, nil)
	v := manyModels(f.view)
	v.Models = append(v.Models, resources.Model{Name: "down", Context: 8192, Hosts: []string{"empty"}})
	down := v.Endpoints[0]
	down.ID, down.Model, down.Address, down.Health = "d0", "down", "127.0.0.1:1", resources.Unhealthy
	v.Endpoints = append(v.Endpoints, down)
	v.Plans = append(v.Plans, policies.OneStagePlan("down", []policies.ReplicaID{"d0"}))
	attack := func(name string, answers ...servertest.EarlyAnswer) {
		t.Run(name, func(t *testing.T) {
			servertest.TestEarlyAnswers(t, strings.TrimPrefix(f.url, "http://"),
				answers...)
		})
	}
	f.publish(v, nil)
	// The estimator reads all of a body whose size it is not given before a model is chosen.
	attack("all",
		servertest.EarlyAnswer{Name: "no replica", Host: "empty", Path: "/v1/completions", Status: 503,
			KnownSize: true},
		servertest.EarlyAnswer{Name: "too large", Host: "shared", Path: "/v1/completions", Status: 413,
			Size: 16<<20 + 1, KnownSize: true},
		servertest.EarlyAnswer{Name: "too large", Host: "shared", Path: "/v1/completions", Status: 413,
			Send: 16<<20 + 1, UnknownSize: true},
		servertest.EarlyAnswer{Name: "upstream's 404", Host: "n.example", Path: "/status/404", Status: 404,
			Send: 100, KnownSize: true},
		servertest.EarlyAnswer{Name: "upstream's 503", Host: "n.example", Path: "/status/503", Status: 503,
			Send: 100, KnownSize: true},
		servertest.EarlyAnswer{Name: "upstream's 200", Host: "n.example", Path: "/status/200", Status: 200,
			Send: 100, KnownSize: true},
		servertest.EarlyAnswer{Name: "refused by every upstream", Host: "n.example", Path: "/refused-at-once",
			Status: 503, Send: 100, KnownSize: true},
	)
	f.publish(v, func(r *api.Routing) { r.Proxy.IdleTimeout = durationpb.New(200 * time.Millisecond) })
	attack("slow", servertest.EarlyAnswer{Name: "body too slow", Host: "n.example", Path: "/v1/completions",
		Status: 408, Send: 100})
	f.proxy.state.Load().stages[stageKey{"n/2", 0}].requests.Store(1 << 40)
	attack("full", servertest.EarlyAnswer{Name: "overloaded", Host: "n.example", Path: "/v1/completions",
		Status: 503, KnownSize: true})
	f.proxy.cfg.everyPath = false
	attack("public", servertest.EarlyAnswer{Name: "path not served", Host: "n.example", Path: "/metrics", Status: 404})
}
