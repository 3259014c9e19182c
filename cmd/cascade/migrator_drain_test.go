package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// TestDrainHandler: the hook is to ask again until the engine has no requests.
func TestDrainHandler(t *testing.T) {
	left := []policies.Load{{Running: 2, Waiting: 1}, {Waiting: 1}, {}}
	asked := 0
	h := drainHandler(func() { asked++ }, func() policies.Load { return left[asked-1] })
	for i, want := range []int{http.StatusAccepted, http.StatusAccepted, http.StatusOK} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/drain", nil))
		if w.Code != want || asked != i+1 {
			t.Errorf("answer %d: %d, %q; drained %d times", i, w.Code, w.Body, asked)
		}
	}
}

// TestLocalOrders admits users as the control plane does, by the owner of the client's socket.
func TestLocalOrders(t *testing.T) {
	for name, tt := range map[string]struct {
		users  []string
		status int
	}{
		"own user": {nil, http.StatusOK},
		"named":    {[]string{strconv.Itoa(os.Geteuid())}, http.StatusOK},
		"everyone": {[]string{"*"}, http.StatusOK},
		"others":   {[]string{"4242"}, http.StatusForbidden},
		"unknown":  {[]string{"no-such-user-here"}, http.StatusForbidden},
	} {
		if name == "others" && os.Geteuid() == 0 {
			continue // root is always admitted
		}
		srv := httptest.NewServer(localOrders(tt.users, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("done")) })))
		resp := testkit.Must(http.Post(srv.URL, "", nil))
		body := testkit.Must(io.ReadAll(resp.Body))
		resp.Body.Close()
		srv.Close()
		if resp.StatusCode != tt.status || (tt.status == http.StatusForbidden) != strings.Contains(string(body), "control.admin_users") {
			t.Errorf("%s: %d, %s", name, resp.StatusCode, body)
		}
	}
}
