package control

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestAttackOrders checks that a client that may not give orders can read, and change
// nothing.
func TestAttackOrders(t *testing.T) {
	asked := 0
	c := startControl(t, Config{Rules: fastRules(), Replicas: newFakeFleet(t, 2).list, AdmitOrder: func(client, server netip.AddrPort) error {
		if asked++; !client.Addr().IsLoopback() || !server.Addr().IsLoopback() || client.Port() == server.Port() {
			t.Errorf("connection from %s to %s", client, server)
		}
		return errors.New("user 4242 is not admitted")
	}})
	waitFor(t, c, "a plan", func(s Status) bool { return s.Epoch > 0 })
	paths := []string{"/drain?replica=r0", "/undrain?replica=r0", "/plan/pin?model=m", "/plan/unpin?model=m", "/plan/rollback?model=m", "/policies/push", "/policies/goal?slot=place", "/policies/rollback?slot=place"}
	for _, path := range paths {
		r := testkit.Must(http.NewRequest(http.MethodPost, "http://"+c.AdminAddr().String()+path, strings.NewReader("{}")))
		r.Header.Set(AdminHeader, "1")
		resp := testkit.Must(http.DefaultClient.Do(r))
		body := string(testkit.Must(io.ReadAll(resp.Body)))
		resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden || !strings.Contains(body, "user 4242") || !strings.Contains(body, "control.admin_users") {
			t.Errorf("%s: %s %s", path, resp.Status, body)
		}
	}
	for _, path := range []string{"/status", "/metrics", "/plan/history", "/policies"} {
		resp := testkit.Must(http.Get("http://" + c.AdminAddr().String() + path))
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
	if asked != len(paths) {
		t.Errorf("asked %d times, want %d", asked, len(paths))
	}
}
