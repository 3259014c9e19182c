package envoy

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/routing"
	"github.com/cascadeinfer/cascade/xds/store"
)

// shown keeps the latest update that a proxy received.
type shown struct{ updates chan *routing.Snapshot }

func (s shown) Update(u *routing.Snapshot) {
	select {
	case <-s.updates:
	default:
	}
	s.updates <- u
}

// TestRefusedModuleStopsNothing makes the first group's Envoy reject the module: the plan still
// reaches that Envoy and the groups after it.
func TestRefusedModuleStopsNothing(t *testing.T) {
	envoytest.Binary(t)
	broken, err := resources.NewModule([]byte("\x00asm\x01\x00\x00\x00\x03\xff"), 0)
	testkit.NoError(t, err)
	address, _ := upstream(t, "r")
	replicas := []policies.Replica{{ID: "r", Model: "m", Address: address, Capacity: policies.Capacity{KV: 400_000, Batch: 256}}}
	st := store.New(store.NewMemory())
	c, stop := plane(t, replicas, st, broken)
	boot, err := resources.Bootstrap(resources.BootstrapConfig{NodeID: "envoy", ControlPlane: c.Addr().String()})
	testkit.NoError(t, err)
	r := &harness{t: t, envoy: envoytest.Start(t, envoytest.Config{Bootstrap: string(boot)})}
	r.url = "http://" + r.envoy.Listener(resources.ListenerName)
	t.Cleanup(r.client.CloseIdleConnections)
	r.waitForSlotStats("Envoy refuses the module", func(s map[string]int64) bool { return s["update_rejected"] >= 1 })
	r.expect("the first group", r.post("m.test", bytes.NewReader(sized("m", 400))), "r", "", "", 400)
	waitForPlan(t, c, "second")

	stop()
	c, _ = plane(t, replicas, st, broken)
	waitForPlan(t, c, "after a restart")
	waitForPlan(t, c, "envoy") // in the group that rejected it
}

// plane runs a control plane that serves a module.
func plane(t *testing.T, replicas []policies.Replica, st *store.Store, m *resources.EstimatorModule) (c *control.Control, stop func()) {
	t.Helper()
	c, err := control.New(control.Config{
		Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Store: st, Replicas: replicas,
		Rules: fleet.Rules{Speed: 1, Seen: 1, Grace: time.Hour, Models: []fleet.Model{{
			Model: resources.Model{Name: "m", Context: 32768}, QoE: policytest.H200QoE(), Cost: policies.Cost{D0: 0.008, D1: 5e-5, D2: 6e-5, D3: 1e-9, D4: 6e-8, Kappa: 4},
		}}},
		Groups:   []resources.GroupRule{{Name: "first", Nodes: []string{"envoy"}}},
		Proxies:  []string{"envoy"},
		Settings: resources.Settings{Listen: "127.0.0.1:0", Estimator: resources.Wasm, Module: m},
	})
	testkit.NoError(t, err)
	return c, testkit.Run(t, c.Run)
}

// waitForPlan waits until a proxy of that name receives a plan.
func waitForPlan(t *testing.T, c *control.Control, node string) {
	t.Helper()
	latest := shown{make(chan *routing.Snapshot, 1)}
	cl, err := routing.New(routing.Config{Target: c.Addr().String(), NodeID: node, Watcher: latest})
	testkit.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() { defer close(over); _ = cl.Run(ctx) }()
	defer func() { cancel(); <-over }()
	testkit.WaitFor(t, "a plan for "+node, func() bool {
		select {
		case s := <-latest.updates:
			return s.Plan() != nil && len(s.Routing.Models) == 1
		default:
			return false
		}
	})
}
