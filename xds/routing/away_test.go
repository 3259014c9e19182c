package routing

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// deadConn is a connection on which every stream fails, with one error at first and
// with another one later.
type deadConn struct{ attempts int }

func (c *deadConn) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return errors.ErrUnsupported
}

func (c *deadConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	if c.attempts++; c.attempts <= 50 {
		return nil, errors.New("refused")
	}
	return nil, errors.New("unreachable")
}

// TestOutageIsOneLine runs a client without its server for a long time: each error is
// logged once, however often the client retries.
func TestOutageIsOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		conn := &deadConn{}
		c := testkit.Must(New(Config{Conn: conn, NodeID: "n1", Logger: slog.New(slog.NewTextHandler(&out, nil))}))
		stop := testkit.Run(t, c.Run)
		time.Sleep(2 * time.Hour)
		stop()
		if got := out.String(); conn.attempts < 100 || strings.Count(got, "\n") != 2 || strings.Count(got,
			"refused") != 1 || strings.Contains(got, "target") {
			t.Errorf("an outage of two hours, for two reasons, is logged as:\n%s", got)
		}
	})
}
