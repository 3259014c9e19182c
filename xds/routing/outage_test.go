package routing

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// brokenConn is a connection whose calls fail.
type brokenConn struct {
	grpc.ClientConnInterface
	testkit.Outage
}

func (c *brokenConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream,
	error) {
	return nil, c.Err()
}

// TestOutageIsLoggedOnceAMinute: for each server, whatever the errors say.
func TestOutageIsLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		conns := []*brokenConn{{}, {}}
		c, err := New(Config{Conn: conns[0], OtherServers: []Server{{Conn: conns[1]}}, NodeID: "n",
			Logger: log.Logger()})
		testkit.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		testkit.NoError(t, c.Run(ctx))
		if n := log.Count("control plane unreachable"); n != 4 || conns[0].Calls < 8 || conns[1].Calls < 8 {
			t.Errorf("%d lines of %d and %d failures:\n%s", n, conns[0].Calls, conns[1].Calls, &log)
		}
	})
}
