package client

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/policies/testkit"
)

// brokenConn is a connection whose calls fail, each with another text.
type brokenConn struct {
	grpc.ClientConnInterface
	calls int
}

func (c *brokenConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	c.calls++
	return nil, errors.New(fmt.Sprint("write tcp 127.0.0.1:", 30000+c.calls, ": broken pipe"))
}

// TestOutageIsLoggedOnceAMinute: for each server, whatever the errors say.
func TestOutageIsLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		conns := []*brokenConn{{}, {}}
		c, err := New(Config{Conn: conns[0], OtherServers: []Server{{Conn: conns[1]}}, NodeID: "n", BackoffMax: time.Second, Logger: log.Logger()})
		testkit.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		testkit.NoError(t, c.Run(ctx))
		if n := log.Count("control plane unreachable"); n != 4 || conns[0].calls < 50 || conns[1].calls < 50 {
			t.Errorf("%d lines of %d and %d failures:\n%s", n, conns[0].calls, conns[1].calls, &log)
		}
	})
}
