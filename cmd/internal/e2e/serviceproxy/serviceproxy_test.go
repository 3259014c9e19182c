package serviceproxy

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

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/clustertest"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/isolated"
	"github.com/cascadeinfer/cascade/policies/testkit"
)

// addresses are this host's, all of 127.0.0.0/8.
type addresses []netip.Addr

func (a *addresses) AddService(ip netip.Addr) error { *a = append(*a, ip); return nil }

func (a *addresses) RemoveService(ip netip.Addr) error {
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

func serviceAt(namespace, name, ip string, endpoints ...string) clustertest.Service {
	return clustertest.Service{
		Service: &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Name: "p", Port: 8080}}},
		},
		Endpoints: map[string][]string{"p": endpoints},
	}
}

// TestProxy serves Services by address and by name, as their endpoints change, and until they are gone.
func TestProxy(t *testing.T) {
	if !isolated.Run(t) {
		return
	}
	isolated.CopyEtc(t)
	var own addresses
	a, b := serveName(t, "a"), serveName(t, "b")
	p := testkit.Must(New(Config{Network: &own, API: serveName(t, "api")}))
	update := func(all ...clustertest.Service) { t.Helper(); testkit.NoError(t, p.Update(all)) }
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

// TestConfig checks that a Config without a field is refused.
func TestConfig(t *testing.T) {
	for _, c := range []Config{{API: "127.0.0.1:1"}, {Network: new(addresses)}} {
		_, err := New(c)
		testkit.WantError(t, err, "Network and API are required")
	}
}
