package clusterwatch

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/cascadeinfer/cascade/cmd/internal/discovery"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// conditionsTest is a running Conditions with a fake client.
type conditionsTest struct {
	*testing.T
	*Conditions
	client *fake.Clientset
	fail   map[string]error // by the Pod's name; read on the goroutine of Run
	anyUID bool
	writes []string // "NAME STATUS REASON", with " at T" where the time of the transition is set
}

func startConditions(t *testing.T, pods ...string) *conditionsTest {
	c := &conditionsTest{T: t, client: fake.NewClientset(), fail: make(map[string]error)}
	for _, name := range pods {
		_, err := c.client.CoreV1().Pods(namespace).Create(t.Context(), pod(name, "vllm", "10.0.0.1"), metav1.CreateOptions{})
		testkit.NoError(t, err)
	}
	c.client.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		patch := a.(clienttesting.PatchAction)
		var p struct {
			Metadata struct{ UID string }
			Status   struct{ Conditions []map[string]string }
		}
		testkit.NoError(t, json.Unmarshal(patch.GetPatch(), &p))
		condition := p.Status.Conditions[0]
		if patch.GetSubresource() != "status" || p.Metadata.UID != "u-"+patch.GetName() && !c.anyUID || condition["type"] != discovery.ConditionType {
			t.Errorf("patch of %s: %s", patch.GetSubresource(), patch.GetPatch())
		}
		line := patch.GetName() + " " + condition["status"] + " " + condition["reason"]
		if condition["lastTransitionTime"] != "" {
			line += " at T"
		}
		c.writes = append(c.writes, line)
		err := c.fail[patch.GetName()]
		return err != nil, nil, err
	})
	c.Conditions = NewConditions(ConditionsConfig{Client: c.client, Namespace: namespace})
	testkit.Run(t, c.Conditions.Run)
	return c
}

// set sets conditions and returns what was written.
func (c *conditionsTest) set(all ...discovery.PodCondition) string {
	c.Helper()
	c.writes = nil
	c.Set(all)
	synctest.Wait()
	return strings.Join(c.writes, ", ")
}

func (c *conditionsTest) expect(want string, all ...discovery.PodCondition) {
	c.Helper()
	if got := c.set(all...); got != want {
		c.Errorf("written %q, want %q", got, want)
	}
}

// wants returns the condition that a Pod should have and the one that it has.
func wants(name string, want discovery.Condition, have *discovery.Condition) discovery.PodCondition {
	return discovery.PodCondition{Pod: name, UID: "u-" + name, Want: want, Have: have}
}

var (
	serves = discovery.Condition{Ready: true, Reason: "Serving"}
	drains = discovery.Condition{Reason: "Draining", Message: "the Pod terminates"}
)

func TestConditions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startConditions(t, "a")
		c.expect("a True Serving at T", wants("a", serves, nil))
		got, err := c.client.CoreV1().Pods(namespace).Get(t.Context(), "a", metav1.GetOptions{})
		testkit.NoError(t, err)
		status := map[corev1.PodConditionType]corev1.ConditionStatus{}
		for _, o := range got.Status.Conditions {
			status[o.Type] = o.Status
		}
		if len(got.Status.Conditions) != 2 || status[corev1.PodReady] != corev1.ConditionTrue || status[discovery.ConditionType] != corev1.ConditionTrue {
			t.Errorf("conditions %+v: the others must stay", got.Status.Conditions)
		}
		// The watch has not shown it yet, then it has.
		c.expect("", wants("a", serves, nil))
		c.expect("", wants("a", serves, &serves))
		// A new reason keeps the time of the transition.
		kept := discovery.Condition{Ready: true, Reason: "Kept"}
		c.expect("a True Kept", wants("a", kept, &serves))
		c.expect("a False Draining at T", wants("a", drains, &kept))
		// Another process writes another reason, which stays; another status does not.
		c.expect("", wants("a", drains, &discovery.Condition{Reason: "LeftOut"}))
		c.expect("", wants("a", drains, &serves))
		time.Sleep(conditionRewrite)
		c.expect("a False Draining at T", wants("a", drains, &serves))
		c.expect("", wants("a", drains, &serves))
		// A message that is too long is the same after it was read back.
		long := discovery.Condition{Reason: "LeftOut", Message: strings.Repeat("x", 2*maxMessage)}
		c.expect("a False LeftOut", wants("a", long, &drains))
		short := long
		short.Message = long.Message[:maxMessage]
		c.expect("", wants("a", long, &short))
	})
}

// TestConditionsOfPodsThatAreGone: neither is an error, nor tried again.
func TestConditionsOfPodsThatAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startConditions(t, "a")
		c.fail["a"] = apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "a", errors.New("Precondition failed: UID"))
		c.expect("a True Serving at T, gone True Serving at T", wants("a", serves, nil), wants("gone", serves, nil))
		c.expect("", wants("a", serves, nil), wants("gone", serves, nil))
		expectFaults(t, c)
	})
}

// TestConditionsFail: an error is a fault until all conditions are written, and one Pod's does not delay another's.
func TestConditionsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := []string{"z"}
		all := []discovery.PodCondition{}
		for i := range conditionFailures {
			names = append(names, fmt.Sprint("bad", i))
		}
		c := startConditions(t, names...)
		for _, name := range names[1:] {
			c.fail[name] = errors.New("pods is forbidden")
			all = append(all, wants(name, serves, nil))
		}
		all = append(all, wants("z", serves, nil))
		if got := c.set(all...); len(c.writes) != conditionFailures || strings.Contains(got, "z") {
			t.Errorf("written %q", got)
		}
		time.Sleep(5 * time.Second)
		expectFaults(t, c, `conditions of Pods: Pod bad9: pods is forbidden \(for 5s`)
		c.expect("z True Serving at T", all...)
		expectFaults(t, c, "bad") // the others still wait
		clear(c.fail)
		all[len(all)-1] = wants("z", serves, &serves)
		time.Sleep(conditionRetry)
		if c.set(all...); len(c.writes) != conditionFailures {
			t.Errorf("written %q", c.writes)
		}
		expectFaults(t, c)
		// A Pod that is gone ends its fault.
		c.fail["z"] = errors.New("pods is forbidden")
		c.expect("z False Draining at T", wants("z", drains, &serves))
		c.expect("", wants("bad0", serves, &serves))
		expectFaults(t, c)
	})
}

// TestConditionsAfterFailures: Pods whose conditions fail forever take turns with those behind them.
func TestConditionsAfterFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startConditions(t, "z")
		var all []discovery.PodCondition
		for i := range 5 * conditionFailures {
			name := fmt.Sprint("bad", i)
			c.fail[name] = errors.New("pods is forbidden")
			all = append(all, wants(name, serves, nil))
		}
		all = append(all, wants("z", serves, nil))
		for range 5 { // as the keeper sets them
			if got := c.set(all...); len(c.writes) != conditionFailures {
				t.Errorf("written %q", got)
			}
			time.Sleep(5 * time.Second)
		}
		if got := c.set(all...); !strings.HasPrefix(got, "z True Serving at T, bad0 ") {
			t.Errorf("written %q, want z first", got)
		}
		// Pods that go meanwhile leave no place from which to go on.
		all = all[len(all)-1:]
		all[0].Want = drains
		c.expect("z False Draining at T", all...)
	})
}

// TestManyConditions: more than a batch is written after one Set.
func TestManyConditions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startConditions(t)
		c.anyUID = true
		var all []discovery.PodCondition
		for i := range 2*conditionBatch + 1 {
			all = append(all, discovery.PodCondition{Pod: "p", UID: fmt.Sprint("u", i), Want: serves})
		}
		if c.set(all...); len(c.writes) != len(all) {
			t.Errorf("%d writes, want %d", len(c.writes), len(all))
		}
	})
}
