package discovery

import (
	"fmt"
	"testing"
)

// TestPoolEndpoints checks which Pods of a pool are endpoints, one for each port.
func TestPoolEndpoints(t *testing.T) {
	c := Cluster{PoolPorts: []uint16{3002, 3000}, Pods: []Pod{
		{Name: "b", IP: "10.0.0.2", Ready: true},
		{Name: "a", IP: "::ffff:10.0.0.1", Ready: true},
		{Name: "unready", IP: "10.0.0.3"},
		{Name: "terminating", IP: "10.0.0.4", Ready: true, Terminating: true},
		{Name: "ended", IP: "10.0.0.5", Ready: true, Ended: true},
		{Name: "no replica yet", IP: "10.0.0.6", Ready: true, Gated: true},
		{Name: "draining", IP: "10.0.0.7", Ready: true, Gated: true, Condition: &Condition{}},
		{Name: "gate open", IP: "10.0.0.8", Ready: true, Gated: true, Condition: &Condition{Ready: true}},
		{Name: "no address yet", Ready: true},
		{Name: "the same address", IP: "10.0.0.2", Ready: true},
	}}
	if got, want := fmt.Sprint(c.PoolEndpoints()), "[10.0.0.1:3000 10.0.0.1:3002 10.0.0.2:3000 10.0.0.2:3002 10.0.0.8:3000 10.0.0.8:3002]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := (Cluster{Pods: c.Pods}).PoolEndpoints(); len(got) > 0 {
		t.Errorf("without ports: %v", got)
	}
}
