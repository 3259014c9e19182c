package wiring

import "testing"

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
