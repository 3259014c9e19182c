package proxy

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
)

// refusingConn is a connection to a control plane that refuses streams.
type refusingConn struct {
	grpc.ClientConnInterface
	streams int
}

func (c *refusingConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	c.streams++
	return nil, errors.New("permission denied")
}

// TestRefusedLoadReports checks that a proxy whose load reports are refused, because it is not in
// proxy.nodes for instance, asks less and less often.
func TestRefusedLoadReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		var conn refusingConn
		(&Proxy{cfg: Config{Logger: slog.New(slog.DiscardHandler)}}).reportLoads(ctx, &conn)
		if conn.streams != 14 { // after 0, 1, 3, 7, 15 and 31 s, and then every 30 s
			t.Errorf("%d streams in five minutes, want 14", conn.streams)
		}
	})
}
