package loadreport

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/api"
)

// brokenConn is a connection whose calls fail.
type brokenConn struct {
	grpc.ClientConnInterface
	testkit.Outage
}

func (c *brokenConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, c.Err()
}

// TestOutageIsLoggedOnceAMinute: whatever its errors say.
func TestOutageIsLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		conn := &brokenConn{}
		r, err := New(Config{Conn: conn, Replica: "r0", Model: "m", Report: func() *api.LoadReport { return new(api.LoadReport) }, Logger: log.Logger()})
		testkit.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		r.Run(ctx)
		if n := log.Count("reporting to control plane failed"); n != 2 || conn.Calls < 50 {
			t.Errorf("%d lines of %d failures:\n%s", n, conn.Calls, &log)
		}
	})
}
