package wiring

import (
	"slices"
	"testing"
)

// TestDigest: control planes that share a file, with variables for what is their own, or whose files differ in
// their peers, have the same digest; any other difference changes it.
func TestDigest(t *testing.T) {
	digest := func(ip, name, peer, more string) string {
		t.Helper()
		t.Setenv("POD_IP", ip)
		t.Setenv("POD_NAME", name)
		f := load(t, `state: state
tls: {cert: a.pem, key: b.pem, ca: c.pem}
control: {listen: "[${POD_IP}]:18000", admin: "127.0.0.1:18001", name: "${POD_NAME}", peers: ["`+peer+`:18000"]`+more+"}\n")
		return f.Digest()
	}
	first := digest("10.0.0.2", "cascade-0", "10.0.0.1", "")
	if second := digest("10.0.0.3", "cascade-1", "10.0.0.1", ""); first != second || first == "" {
		t.Errorf("the digests of one file are %q and %q", first, second)
	}
	if peer := digest("10.0.0.1", "cascade-0", "10.0.0.2", ""); peer != first {
		t.Errorf("the digests of two planes that list each other are %q and %q", first, peer)
	}
	if other := digest("10.0.0.2", "cascade-0", "10.0.0.1", ", any_removal: true"); other == first {
		t.Error("another setting has the same digest")
	}
}

// TestDifferences: the fields in which two files differ are named, and control planes do not compare what is their own.
func TestDifferences(t *testing.T) {
	a := load(t, "speed: 2\ncontrol: {listen: \"127.0.0.1:18000\", name: a}\nplanner: {period: 10s}\n")
	b := load(t, "control: {listen: \"127.0.0.1:18010\", name: b}\nplanner: {period: 20s}\nproxy: {nodes: [edge]}\n")
	if got := a.Differences(&b); !slices.Equal(got, []string{"control.listen", "control.name", "planner.period", "proxy.nodes", "speed"}) {
		t.Errorf("%q", got)
	}
	if fields := a.SharedFields(); fields["control.name"] != "" || fields["control.listen"] != "" || fields["planner.period"] == "" || fields["replicas"] == "" {
		t.Errorf("%v", fields)
	}
}
