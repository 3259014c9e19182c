package storetest

import (
	"errors"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Link is a connection that a test can cut off; etcdtest.Link is one.
type Link interface {
	Partition() // nothing passes until Heal
	Cut()       // closes the connections
	Heal()
}

// RunCompacted checks that a watch goes on whose history was compacted while it was cut off: it cannot resume.
// s writes, and watched is the same plan behind the link; it must be empty.
func RunCompacted(t *testing.T, s, watched store.Plans, link Link, compact func()) {
	f := Follow(t, watched)
	v, err := s.CompareAndSwap(t.Context(), "", Object(1))
	testkit.NoError(t, err)
	f.Await(1)
	link.Partition()
	for e := policies.Epoch(2); e <= 4; e++ {
		v, err = s.CompareAndSwap(t.Context(), v, Object(e))
		testkit.NoError(t, err)
	}
	compact()
	link.Cut()
	link.Heal()
	f.Await(4)
	_, err = s.CompareAndSwap(t.Context(), v, Object(5))
	testkit.NoError(t, err)
	f.Await(5)
}

// RunWatchCut checks a watch that is cut off in several ways, and then hangs: what was stored arrives by the next read at
// the latest, and later changes do, too. s writes, and watched is the same plan behind the link; it must be empty. resumed
// waits until the watch is there again.
func RunWatchCut(t *testing.T, s, watched store.Plans, link Link, cuts []func(), resumed func()) {
	f, v, epoch := Follow(t, watched), store.Version(""), policies.Epoch(0)
	swap := func() {
		t.Helper()
		epoch++
		var err error
		v, err = s.CompareAndSwap(t.Context(), v, Object(epoch))
		testkit.NoError(t, err)
		f.Await(epoch)
	}
	resumed()
	swap()
	for _, cut := range cuts {
		cut()
		swap()
		resumed()
	}
	link.Partition()
	if err := f.AwaitError(); !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "no answer in time") {
		t.Errorf("the error of a partition is %v", err)
	}
	link.Heal()
	f.Await(epoch)
	swap()
}
