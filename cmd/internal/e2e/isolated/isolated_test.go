package isolated

import (
	"net"
	"os"
	"testing"

	"github.com/cascadeinfer/cascade/policies/testkit"
)

// passed is the environment variable of the outer test that the inner one must have.
const passed = "CASCADE_TEST_PASSED"

// TestRun: inside there is loopback and nothing else, not even an address at which the outer test listens.
func TestRun(t *testing.T) {
	if !Run(t, passed+"=x") {
		return
	}
	if os.Getenv(passed) != "x" {
		t.Error("the environment variable is missing")
	}
	interfaces, err := net.Interfaces()
	testkit.NoError(t, err)
	if len(interfaces) != 1 || interfaces[0].Flags&net.FlagLoopback == 0 {
		t.Errorf("the interfaces are %v", interfaces)
	}
	l, err := net.Listen("tcp", "127.0.0.1:80")
	testkit.NoError(t, err)
	testkit.NoError(t, l.Close())
}
