package control

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/length"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestPingsOfIdleEnvoys: an Envoy pings its control plane and its length service as often as the bootstrap says, and
// no server closes the connection for it, however little it has to send.
func TestPingsOfIdleEnvoys(t *testing.T) {
	interval := resources.HTTP2Options(1).GetExplicitHttpConfig().GetHttp2ProtocolOptions().GetConnectionKeepalive().GetInterval().AsDuration()
	lengths := testkit.Must(length.New(length.Config{Models: []length.Model{{Name: "m"}}}))
	for name, options := range map[string][]grpc.ServerOption{"control plane": serverOptions(nil), "length service": lengths.Options()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { requirePings(t, grpc.NewServer(options...), interval) })
		})
	}
}

// requirePings pings a server for a minute on a connection without streams: each ping is acknowledged.
func requirePings(t *testing.T, server *grpc.Server, interval time.Duration) {
	listener := testkit.NewPipeListener(netip.MustParseAddrPort("127.0.0.1:1"))
	go server.Serve(listener)
	defer server.Stop()
	conn := testkit.Must(listener.Dial(t.Context()))
	defer conn.Close()
	frames, acks := http2.NewFramer(conn, conn), make(chan struct{})
	go func() {
		defer close(acks)
		for {
			f, err := frames.ReadFrame()
			if err != nil {
				return
			}
			switch f := f.(type) {
			case *http2.GoAwayFrame:
				t.Errorf("GOAWAY: %s", f.DebugData())
				return
			case *http2.PingFrame:
				if f.IsAck() {
					acks <- struct{}{}
				}
			}
		}
	}()
	testkit.Must(conn.Write([]byte(http2.ClientPreface)))
	testkit.NoError(t, frames.WriteSettings())
	for range time.Minute / interval {
		time.Sleep(interval)
		testkit.NoError(t, frames.WritePing(false, [8]byte{1}))
		if _, open := <-acks; !open {
			return
		}
	}
}
