package wiring

import (
	"os"
	"slices"
	"testing"
)

// TestControlCertificates: every control plane has a name of its own, which it
// finds by itself when it is started with its address.
func TestControlCertificates(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		control string
		want    []string
	}{
		{"{}", []string{"control"}},
		{"{name: main}", []string{"main"}},
		{`{peers: ["127.0.0.1:18100"]}`, []string{host + ":18000", host + ":18100"}},
		{`{name: main, peers: ["127.0.0.1:18000", "127.0.0.1:18100"]}`, []string{"main", host + ":18100"}},
	} {
		f := load(t, "state: state\ncontrol: "+c.control+"\n")
		got := f.ControlCertificates()
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.control, got, c.want)
		}
		for i, address := range f.ControlPlanes() {
			one := f
			if i > 0 {
				one.Fleet.Control.Name, one.Fleet.Control.Listen = "", address
			}
			if name := one.ControlCertificate(); name != got[i] {
				t.Errorf("%s at %s: %q, want %q", c.control, address, name, got[i])
			}
		}
	}
}
