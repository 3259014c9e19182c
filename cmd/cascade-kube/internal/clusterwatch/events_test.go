package clusterwatch

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/cascadeinfer/cascade/cmd/internal/discovery"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

func change(pod string, before, state discovery.State, reason string) discovery.Change {
	return discovery.Change{Status: discovery.Status{Pod: pod, Replica: pod + ".uid-1", State: state, Reason: reason}, Before: before}
}

// startEvents runs Events with a fake client whose created Events it collects.
func startEvents(t *testing.T, uid string) (e *Events, written func() []*eventsv1.Event, client *fake.Clientset) {
	client = fake.NewClientset()
	n := 0
	client.PrependReactor("create", "events", func(a clienttesting.Action) (bool, runtime.Object, error) {
		event := a.(clienttesting.CreateAction).GetObject().(*eventsv1.Event)
		n++
		event.Name = fmt.Sprintf("%s%d", event.GenerateName, n) // the fake gives no names
		return false, nil, nil
	})
	e = NewEvents(EventsConfig{Client: client, Regarding: func() corev1.ObjectReference {
		return corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: "vllm", UID: types.UID(uid)}
	}})
	testkit.Run(t, e.Run)
	return e, func() (out []*eventsv1.Event) {
		synctest.Wait()
		list, err := client.EventsV1().Events(namespace).List(t.Context(), metav1.ListOptions{})
		testkit.NoError(t, err)
		for i := range list.Items {
			out = append(out, &list.Items[i])
		}
		return out
	}, client
}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, written, _ := startEvents(t, "service")
		gone := change("g", discovery.Serving, discovery.Serving, "")
		gone.Gone = true
		e.Record([]discovery.Change{
			change("a", discovery.LeftOut, discovery.Serving, ""),
			change("b", discovery.Serving, discovery.Draining, "the Pod terminates"),
			change("c", discovery.Draining, discovery.Serving, ""),
			change("d", discovery.LeftOut, discovery.LeftOut, "annotation x: "+strings.Repeat("é", 1000)),
			change("e", discovery.Draining, discovery.Kept, "the last"),
			gone,
		})
		list := written()
		var got []string
		for _, e := range list {
			got = append(got, e.Type+" "+e.Reason+" "+e.Note[:min(60, len(e.Note))])
			if e.Regarding.Name != "vllm" || e.Namespace != namespace || e.EventTime.IsZero() || e.ReportingController == "" || e.ReportingInstance == "" || e.Action == "" {
				t.Errorf("incomplete: %+v", e)
			}
			if e.Related == nil || e.Related.Kind != "Pod" || e.Related.UID != "uid-1" {
				t.Errorf("related to %+v", e.Related)
			}
			if len(e.Note) > maxNote || strings.ToValidUTF8(e.Note, "") != e.Note {
				t.Errorf("note of %d bytes", len(e.Note))
			}
		}
		want := []string{
			"Normal ReplicaJoined Pod a is a replica of the fleet",
			"Normal DrainBegun the replica of Pod b takes no new requests, and running ones",
			"Normal ReplicaServes the replica of Pod c takes new requests again",
			"Warning PodLeftOut Pod d is no replica: annotation x: ",
			"Warning ReplicaKept the replica of Pod e stays in the fleet: the last",
			"Normal ReplicaGone the replica of Pod g has left the fleet",
		}
		for i := range want {
			if i >= len(got) || !strings.HasPrefix(got[i], want[i]) {
				t.Fatalf("got %q, want %q", got, want)
			}
		}
	})
}

// TestEventsAreLimited checks that a fleet that flaps writes a burst, then one Event in
// each interval, which says how many there were.
func TestEventsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, written, _ := startEvents(t, "service")
		flap := func(n int) {
			for range n {
				e.Record([]discovery.Change{change("a", discovery.Draining, discovery.Serving, "")})
				synctest.Wait()
			}
		}
		flap(100)
		if n := len(written()); n != eventBurst {
			t.Errorf("%d events, want %d", n, eventBurst)
		}
		time.Sleep(3*eventInterval + time.Second)
		flap(10)
		list := written()
		if len(list) != eventBurst+3 {
			t.Fatalf("%d events, want 3 more", len(list))
		}
		found := false
		for _, e := range list {
			found = found || strings.Contains(e.Note, "(70 more changes before it")
		}
		if !found {
			t.Error("no event says how many were dropped")
		}
	})
}

// TestEventsNeedNoServer checks that Events which cannot be written delay nothing.
func TestEventsNeedNoServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, written, client := startEvents(t, "") // the object was not read yet
		e.Record([]discovery.Change{change("a", discovery.LeftOut, discovery.Serving, "")})
		if n := len(written()); n != 0 {
			t.Errorf("%d events about nothing", n)
		}
		client.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("forbidden")
		})
		for range 10 * eventQueue {
			e.Record([]discovery.Change{change("a", discovery.LeftOut, discovery.Serving, "")})
		}
	})
}
