package harness

import (
	"flag"
	"net"
	"os"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// passed is the environment variable of the outer test that the inner one must have.
const passed = "CASCADE_TEST_PASSED"

// TestRunIsolated: inside there is loopback and nothing else, not even an address at which the outer test listens. The test runs
// there once, whatever -count and the arguments of the outer one are, and a skipped subtest of it skips no test.
func TestRunIsolated(t *testing.T) {
	if os.Getenv(variable) == "" {
		command(t) // skips the test where no namespaces can be made
		t.Cleanup(func() {
			if t.Skipped() {
				t.Error("the test is skipped, as its subtest was")
			}
		})
		count, args := flag.Lookup("test.count").Value.String(), flag.Args()
		parse := func(args ...string) { testkit.NoError(t, flag.CommandLine.Parse(args)) }
		parse("-test.count=2", "argument")
		t.Cleanup(func() { parse(append([]string{"-test.count=" + count, "--"}, args...)...) })
	}
	if !RunIsolated(t, passed+"=x") {
		return
	}
	if os.Getenv(passed) != "x" {
		t.Error("the environment variable is missing")
	}
	if count := flag.Lookup("test.count").Value.String(); count != "1" || !slices.Equal(flag.Args(), []string{"argument"}) {
		t.Errorf("-test.count is %s, the arguments are %q", count, flag.Args())
	}
	interfaces, err := net.Interfaces()
	testkit.NoError(t, err)
	if len(interfaces) != 1 || interfaces[0].Flags&net.FlagLoopback == 0 {
		t.Errorf("the interfaces are %v", interfaces)
	}
	l, err := net.Listen("tcp", "127.0.0.1:80")
	testkit.NoError(t, err)
	testkit.NoError(t, l.Close())
	t.Run("skipped", func(t *testing.T) { testkit.Skip(t, testkit.Unavailable{What: "nothing", Remedy: "nothing"}) })
}
