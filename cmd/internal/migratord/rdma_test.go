package migratord

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	libibverbs "github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/peer"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
	"github.com/cascadeinfer/cascade/migrator/transport/verbs"
	"github.com/cascadeinfer/cascade/policies"
)

// TestPeerRPC checks that the peers' port has two services with RDMA, and one without.
func TestPeerRPC(t *testing.T) {
	network, err := peer.New(peer.Config{Self: "a", Handle: func(policies.ReplicaID, *api.Envelope) {}})
	testkit.NoError(t, err)
	lib, err := libibverbs.Open(fake.Verbs(t))
	fake.RequireOpened(t, err)
	rdma, err := verbs.New(verbs.Config{Library: lib, Address: func() string { return "" }, Pool: transporttest.Pool{}})
	testkit.NoError(t, err)
	ask := func(d *Daemon, path string) string {
		r := httptest.NewRequest("POST", path, http.NoBody)
		r.ProtoMajor, r.Proto = 2, "HTTP/2.0"
		r.Header.Set("Content-Type", "application/grpc")
		w := httptest.NewRecorder()
		d.peerRPC().ServeHTTP(w, r)
		return w.Result().Trailer.Get("Grpc-Message") + w.Header().Get("Grpc-Message")
	}
	with, without := &Daemon{network: network, rdma: rdma}, &Daemon{network: network}
	for _, c := range []struct {
		d          *Daemon
		path, want string
	}{
		{with, verbs.Path + "Attach", "the source does not run"},
		{with, "/cascade.migrator.v1.Peer/Exchange", "the migrator is not running"},
		{without, verbs.Path + "Attach", "unknown service"},
		{without, "/cascade.migrator.v1.Peer/Exchange", "the migrator is not running"},
	} {
		if got := ask(c.d, c.path); !strings.Contains(got, c.want) {
			t.Errorf("%s, with RDMA %v: %q", c.path, c.d.rdma != nil, got)
		}
	}
}
