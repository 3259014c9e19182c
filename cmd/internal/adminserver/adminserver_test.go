package adminserver

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/control"
)

// TestCrossSite: what a page of another site can make a browser send changes nothing on any daemon, whatever the
// handler behind the admin server checks.
func TestCrossSite(t *testing.T) {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	changed := 0
	defer testkit.Run(t, func(ctx context.Context) error {
		return Serve(ctx, l, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet {
				changed++
			}
		}), Access{})
	})()
	for _, tt := range []struct {
		method, header, value string
		status                int
	}{
		{http.MethodPost, "Origin", "https://evil.example", http.StatusForbidden},
		{http.MethodPost, "Content-Type", "text/plain;charset=application/json", http.StatusForbidden},
		{http.MethodPut, "X-Other", "1", http.StatusForbidden},
		{http.MethodDelete, "X-Other", "1", http.StatusForbidden},
		{http.MethodPost, "Content-Type", "application/json;charset=utf-8", http.StatusOK},
		{http.MethodPost, control.AdminHeader, "", http.StatusOK},
		{http.MethodGet, "Origin", "https://evil.example", http.StatusOK},
		{http.MethodHead, "Origin", "https://evil.example", http.StatusOK},
	} {
		before := changed
		r := testkit.Must(http.NewRequestWithContext(t.Context(), tt.method, "http://"+l.Addr().String()+"/drain", strings.NewReader("")))
		r.Header.Set(tt.header, tt.value)
		resp := testkit.Must(http.DefaultClient.Do(r))
		resp.Body.Close()
		if resp.StatusCode != tt.status || tt.status == http.StatusForbidden && changed != before {
			t.Errorf("%s with %s %q: %d, want %d", tt.method, tt.header, tt.value, resp.StatusCode, tt.status)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
