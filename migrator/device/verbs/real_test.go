package verbs_test

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device/verbs"
)

// TestRealDevice reads on the machine's first RDMA device: in the
// guest of "make rdma-check", or if CASCADE_TEST_VERBS is set.
func TestRealDevice(t *testing.T) {
	if os.Getenv("CASCADE_TEST_VERBS") == "" {
		testkit.Skip(t, testkit.Unavailable{What: "there is no RDMA device", Remedy: "run `make rdma-check`"})
	}
	l := testkit.Must(verbs.Open(""))
	r := &harness{lib: l, withoutDMABuf: true}
	testkit.NoError(t, r.setUp(""))
	testkit.NoError(t, r.work())
	if err := r.pairs[1].Close(); err != nil {
		t.Error(err)
	}
	start := time.Now()
	err := r.transfer(10)
	var failed *verbs.CompletionError
	if !errors.As(err, &failed) || failed.Status != verbs.RetryExceeded {
		t.Errorf("a READ from a pair that does not exist: %v", err)
	}
	fmt.Printf("\nrdma-check: device | READ on %s | peer's pair destroyed: noticed after %v\n", r.device.Name, time.Since(start).Round(time.Millisecond))
	if err := r.close(); err != nil {
		t.Error(err)
	}
	const cycles = 100
	before := testkit.OpenFiles(t)
	for range cycles {
		r := &harness{lib: l, withoutDMABuf: true}
		testkit.NoError(t, errors.Join(r.setUp(""), r.close()))
	}
	if n := l.OpenResources(); n != (verbs.Resources{}) || testkit.OpenFiles(t) > before {
		t.Errorf("%+v are open, %d files of %d", n, testkit.OpenFiles(t), before)
	}
	fmt.Printf("\nrdma-check: device | opened and closed with regions, queues and pairs | %d times, nothing left\n", cycles)
}
