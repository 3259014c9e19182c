package clusterwatch

import (
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestSelectionStays checks that a pool which is gone, or is bad, changes nothing, and that between
// two selectors there is no moment without Pods.
func TestSelectionStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "vllm", "")
		c.setPod(pod("a", "blue", "10.0.0.1"))
		c.setPod(pod("b", "green", "10.0.0.2"))
		c.setPool(pool("vllm", "blue", 9000))
		c.run()
		c.expect("port 9000: a@10.0.0.1")
		c.setPool(pool("vllm", "blue", 0))
		c.expect("port 9000: a@10.0.0.1")
		expectFaults(t, c.w, `targetPorts\[0\]\.number`)
		c.setPool(leaving(pool("vllm", "blue", 9000)))
		c.expect("port 9000: a@10.0.0.1")
		expectFaults(t, c.w)
		c.deletePool("vllm")
		c.setPod(pod("c", "blue", "10.0.0.3"))
		c.expect("port 9000: a@10.0.0.1, c@10.0.0.3") // its Pods are still followed
		c.setPool(pool("vllm", "green", 9001))
		c.expect("port 9001: b@10.0.0.2")
		for i, d := range c.seen {
			if len(d.Pods) == 0 {
				t.Errorf("delivery %d has no Pods", i)
			}
		}
	})
}

// leaving returns an object that is being deleted.
func leaving(o *unstructured.Unstructured) *unstructured.Unstructured {
	now := metav1.Now()
	o.SetDeletionTimestamp(&now)
	return o
}

// withUID returns an object with another UID, as one that is created again has.
func withUID(o *unstructured.Unstructured, uid string) *unstructured.Unstructured {
	o.SetUID(types.UID(uid))
	return o
}

// TestForgetDeleted checks that a Watcher which forgets delivers no Pods while the pool is gone or is being deleted, nor those
// of a former pool for the next one of its name, and that log and faults say so.
func TestForgetDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "vllm", "")
		log := &testkit.Log{}
		c.w.cfg.ForgetDeleted, c.w.log = true, log.Logger()
		c.setPod(pod("a", "blue", "10.0.0.1"))
		c.setPod(pod("b", "green", "10.0.0.2"))
		away := c.failLists("timeout")
		c.run()
		c.expect("nothing") // a pool that was never there has no endpoints to forget
		c.setPool(pool("vllm", "blue", 9000))
		c.expect("port 9000: a@10.0.0.1")
		expectFaults(t, c.w)
		c.setPool(pool("vllm", "blue", 0)) // the same pool, and bad
		c.expect("port 9000: a@10.0.0.1")
		expectFaults(t, c.w, `targetPorts\[0\]\.number.*the last state stays`)
		c.setPool(pool("vllm", "blue", 9000))
		c.expect("port 9000: a@10.0.0.1")

		c.setPool(leaving(pool("vllm", "blue", 9000)))
		c.expect("port 0: ")
		expectFaults(t, c.w, "it is being deleted.*no endpoints")
		if text := `error="it is being deleted: create it again, or name another one" effect="no endpoints"`; log.Count(text) != 1 {
			t.Errorf("the log is\n%s", log)
		}
		c.deletePool("vllm")
		c.expect("port 0: ")
		expectFaults(t, c.w, "it does not exist.*no endpoints")
		c.setPool(withUID(pool("vllm", "blue", 9001), "second"))
		c.expect("port 9001: a@10.0.0.1")
		expectFaults(t, c.w)

		// The next one has another selector, and its Pods cannot be listed.
		c.deletePool("vllm")
		c.expect("port 0: ")
		away.Store(true)
		c.setPool(withUID(pool("vllm", "green", 9002), "third"))
		c.expect("port 0: ")
		expectFaults(t, c.w, "list of pods: timeout.*no endpoints")
		away.Store(false)
		time.Sleep(2 * maxDelay)
		c.expect("port 9002: b@10.0.0.2")
		expectFaults(t, c.w)

		// The next one is bad, and then good.
		c.deletePool("vllm")
		bad := withUID(pool("vllm", "green", 9003), "fourth")
		testkit.NoError(t, unstructured.SetNestedStringMap(bad.Object, nil, "spec", "selector", "matchLabels"))
		c.setPool(bad)
		c.expect("port 0: ")
		expectFaults(t, c.w, "its selector is empty.*no endpoints")
		c.setPool(withUID(pool("vllm", "green", 9003), "fourth"))
		c.expect("port 9003: b@10.0.0.2")
		expectFaults(t, c.w)

		// The same pool selects others, which cannot be listed: the former ones stay.
		away.Store(true)
		c.setPool(withUID(pool("vllm", "blue", 9004), "fourth"))
		c.expect("port 9003: b@10.0.0.2")
		away.Store(false)
		time.Sleep(2 * maxDelay)
		c.expect("port 9004: a@10.0.0.1")

		// It is bad, which changes nothing, and then it is gone: another effect is logged.
		c.setPool(withUID(pool("vllm", "blue", 0), "fourth"))
		c.expect("port 9004: a@10.0.0.1")
		const gone = `error="it does not exist: create it, or name another one" effect="no endpoints"`
		before := log.Count(gone)
		c.deletePool("vllm")
		c.expect("port 0: ")
		if n := log.Count(gone); n != before+1 {
			t.Errorf("logged %d times, and %d before:\n%s", n, before, log)
		}
	})
}

// TestPortOfTheFormerSelector checks that a pool whose selector and port change at once gives the new
// port to no Pod of the former selector, however long the new Pods cannot be listed.
func TestPortOfTheFormerSelector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "vllm", "")
		c.setPod(pod("a", "blue", "10.0.0.1"))
		c.setPod(pod("b", "green", "10.0.0.2"))
		c.setPool(pool("vllm", "blue", 9000))
		away := c.failLists("timeout")
		c.run()
		c.expect("port 9000: a@10.0.0.1")
		away.Store(true)
		c.setPool(pool("vllm", "green", 9001))
		c.expect("port 9000: a@10.0.0.1")
		c.setPool(pool("vllm", "green", 9002))
		c.expect("port 9000: a@10.0.0.1")
		away.Store(false)
		time.Sleep(2 * maxDelay)
		c.expect("port 9002: b@10.0.0.2")
		c.setPool(pool("vllm", "green", 9003)) // the port alone
		c.expect("port 9003: b@10.0.0.2")
		away.Store(true)
		c.setPool(pool("vllm", "blue", 9004))
		c.setPod(pod("c", "green", "10.0.0.3")) // before the watch of the former selector has ended
		c.expect("port 9003: b@10.0.0.2, c@10.0.0.3")
		away.Store(false)
	})
}

// TestChangesAtOnce checks that of several changes within settle the last one is delivered.
func TestChangesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "vllm", "")
		c.setPod(pod("a", "blue", "10.0.0.1"))
		c.setPool(pool("vllm", "blue", 9000))
		c.run()
		c.expect("port 9000: a@10.0.0.1")
		before := len(c.seen)
		c.setPool(pool("vllm", "blue", 9001))
		time.Sleep(settle / 2)
		c.setPool(pool("vllm", "blue", 9002))
		c.expect("port 9002: a@10.0.0.1")
		if n := len(c.seen) - before; n != 1 {
			t.Errorf("%d deliveries", n)
		}
	})
}
