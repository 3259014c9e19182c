package clustertest

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// addresses are this host's, all of 127.0.0.0/8.
type addresses []netip.Addr

func (a *addresses) AddService(ip netip.Addr) error { *a = append(*a, ip); return nil }

func (a *addresses) RemoveService(ip netip.Addr) error {
	if !slices.Contains(*a, ip) {
		return fmt.Errorf("%v is no address of this host", ip)
	}
	*a = slices.DeleteFunc(*a, func(other netip.Addr) bool { return other == ip })
	return nil
}

// serveName runs a server that answers with its name, and returns its address.
func serveName(t *testing.T, name string) string {
	t.Helper()
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, name)
			c.Close()
		}
	}()
	return l.Addr().String()
}

// ask returns what a server answers; "" if it refuses.
func ask(address string) string {
	c, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		return ""
	}
	defer c.Close()
	text, _ := io.ReadAll(c)
	return string(text)
}

func serviceAt(namespace, name, ip string, endpoints ...string) Service {
	return Service{
		Service: &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Name: "p", Port: 8080}}},
		},
		Endpoints: map[string][]string{"p": endpoints},
	}
}

// TestProxy serves Services by address and by name, as their endpoints change, and until they are gone.
func TestProxy(t *testing.T) {
	if !harness.RunIsolated(t) {
		return
	}
	harness.CopyEtc(t)
	var own addresses
	a, b := serveName(t, "a"), serveName(t, "b")
	p := testkit.Must(NewProxy(ProxyConfig{Network: &own, API: serveName(t, "api")}))
	update := func(all ...Service) { t.Helper(); testkit.NoError(t, p.Update(all)) }
	want := func(address, want string) {
		t.Helper()
		if got := ask(address); got != want {
			t.Errorf("%s answers %q, want %q", address, got, want)
		}
	}
	update(serviceAt("default", "kubernetes", "127.0.9.1"), serviceAt("n", "s", "127.0.9.2", a), serviceAt("n", "headless", corev1.ClusterIPNone, a))
	want("127.0.9.1:8080", "api")
	want("127.0.9.2:8080", "a")
	want("s:8080", "a")
	want("s.n.svc.cluster.local:8080", "a")
	if got := fmt.Sprint(own); got != "[127.0.9.1 127.0.9.2]" {
		t.Errorf("the addresses of Services are %s", got)
	}
	update(serviceAt("n", "s", "127.0.9.2", a, b))
	want("127.0.9.1:8080", "")
	testkit.WaitFor(t, "connections to the other endpoint", func() bool { return ask("127.0.9.2:8080") == "b" })
	update(serviceAt("n", "s", "127.0.9.2", b))
	for range 10 {
		want("127.0.9.2:8080", "b")
	}
	update(serviceAt("n", "s", "127.0.9.2"))
	want("127.0.9.2:8080", "")
	testkit.NoError(t, p.Close())
	if len(own) > 0 {
		t.Errorf("the addresses %v are left", own)
	}
}

// TestRecreated serves a Service that has another address and other ports than before under its name.
func TestRecreated(t *testing.T) {
	if !harness.RunIsolated(t) {
		return
	}
	harness.CopyEtc(t)
	var own addresses
	a, b := serveName(t, "a"), serveName(t, "b")
	p := testkit.Must(NewProxy(ProxyConfig{Network: &own, API: a}))
	serve := func(ip string, ports ...corev1.ServicePort) error {
		s := serviceAt("n", "s", ip)
		s.Spec.Ports, s.Endpoints = ports, map[string][]string{"a": {a}, "b": {b}}
		return p.Update([]Service{s})
	}
	want := func(answers ...string) {
		t.Helper()
		var got []string
		for _, address := range []string{"127.0.9.2:8080", "127.0.9.2:8081", "127.0.9.3:8080", "127.0.9.3:8081"} {
			got = append(got, ask(address))
		}
		if !slices.Equal(got, answers) {
			t.Errorf("the ports answer %q, want %q", got, answers)
		}
	}
	portA, portB := corev1.ServicePort{Name: "a", Port: 8080}, corev1.ServicePort{Name: "b", Port: 8081}
	testkit.NoError(t, serve("127.0.9.2", portA, portB))
	want("a", "b", "", "")
	testkit.NoError(t, serve("127.0.9.3", portA, portB))
	want("", "", "a", "b")
	if got := fmt.Sprint(own); got != "[127.0.9.3]" {
		t.Errorf("the addresses of Services are %s", got)
	}
	portA.Port, portB.Port = portB.Port, portA.Port
	testkit.NoError(t, serve("127.0.9.3", portA, portB))
	want("", "", "b", "a")
	testkit.NoError(t, serve("127.0.9.3", portA))
	want("", "", "", "a")

	// An address that cannot be removed is tried again, also if the Service comes back meanwhile.
	last := own
	own = nil
	testkit.WantError(t, p.Update(nil), "remove Service n/s: 127.0.9.3 is no")
	want("", "", "", "")
	testkit.WantError(t, serve("127.0.9.2", portA), "remove Service n/s: 127.0.9.3 is no")
	testkit.NoError(t, serve("127.0.9.3", portA))
	want("", "", "", "a")
	testkit.WantError(t, p.Update(nil), "remove Service n/s: 127.0.9.3 is no")
	own = last
	testkit.NoError(t, p.Update(nil))
	testkit.NoError(t, p.Close())
	if len(own) > 0 {
		t.Errorf("the addresses %v are left", own)
	}
}
