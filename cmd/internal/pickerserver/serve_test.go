package pickerserver

import (
	"net"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestTakenPort names the flags: the defaults are those of gateways, and a replica may have them.
func TestTakenPort(t *testing.T) {
	taken := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	defer taken.Close()
	_, err := Listen("127.0.0.1:0", taken.Addr().String())
	if err == nil || !strings.Contains(err.Error(), taken.Addr().String()) || !strings.Contains(err.Error(), "--grpc-port") {
		t.Error(err)
	}
}
