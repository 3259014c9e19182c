package clusterwatch

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/cascadeinfer/cascade/cmd/internal/discovery"
	"github.com/cascadeinfer/cascade/internal/cleantext"
)

// Limits of Events: a fleet that flaps must not fill the API server.
const (
	eventBurst    = 30
	eventInterval = 10 * time.Second // of one more Event, after a burst
	eventTimeout  = 5 * time.Second
	maxNote       = 1024 // bytes, the API's limit
	eventQueue    = 256
)

// controllerName is who reports the Events.
const controllerName = "cascadeinfer.com/discovery"

// EventsConfig is the configuration of Events.
type EventsConfig struct {
	Client kubernetes.Interface // required
	// Regarding returns the object that the Events are about. Without a UID nothing is
	// written.
	Regarding func() corev1.ObjectReference
	Logger    *slog.Logger // nil discards
}

// Events writes changes of a fleet as Events of the object that selects the Pods. What it
// cannot write, or what is too frequent, is dropped and counted: the log has it.
type Events struct {
	cfg     EventsConfig
	log     *slog.Logger
	host    string
	queue   chan discovery.Change
	allowed budget // owned by Run
}

// NewEvents returns Events. Nothing runs before Run.
func NewEvents(cfg EventsConfig) *Events {
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return &Events{cfg: cfg, log: log, host: cleantext.Truncate(host, 128), queue: make(chan discovery.Change, eventQueue), allowed: budget{left: eventBurst}}
}

// Record queues changes. It never blocks, and may be called from any goroutine.
func (e *Events) Record(changes []discovery.Change) {
	for _, c := range changes {
		select {
		case e.queue <- c:
		default:
			e.log.Warn("event dropped, too many wait", "pod", c.Pod)
		}
	}
}

// Run writes what is queued, until ctx ends, and then returns nil.
func (e *Events) Run(ctx context.Context) error {
	dropped := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-e.queue:
			if !e.allowed.take(time.Now()) {
				dropped++
				continue
			}
			event := newEvent(c, e.cfg.Regarding(), e.host, time.Now())
			if event.Regarding.UID == "" {
				continue
			}
			if dropped > 0 {
				event.Note = cleantext.Truncate(fmt.Sprintf("%s (%d more changes before it: see the log of cascade-kube)", event.Note, dropped), maxNote)
				dropped = 0
			}
			e.write(ctx, event)
		}
	}
}

func (e *Events) write(ctx context.Context, event *eventsv1.Event) {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	if _, err := e.cfg.Client.EventsV1().Events(event.Namespace).Create(ctx, event, metav1.CreateOptions{}); err != nil {
		e.log.Warn("event not written", "note", event.Note, "error", err)
	}
}

// newEvent returns the Event of a change.
func newEvent(c discovery.Change, regarding corev1.ObjectReference, host string, now time.Time) *eventsv1.Event {
	reason, kind, note := describe(c)
	if c.Reason != "" && !c.Gone {
		note += ": " + c.Reason
	}
	event := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "cascade-", Namespace: regarding.Namespace},
		EventTime:  metav1.NewMicroTime(now), ReportingController: controllerName, ReportingInstance: host,
		Action: "Discover", Reason: reason, Type: kind, Regarding: regarding, Note: cleantext.Truncate(note, maxNote),
	}
	if _, uid, ok := discovery.PodOf(c.Replica); ok {
		event.Related = &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: regarding.Namespace, Name: c.Pod, UID: types.UID(uid)}
	}
	return event
}

// describe returns the reason, the type and the beginning of the note of a change.
func describe(c discovery.Change) (reason, kind, note string) {
	switch {
	case c.Gone:
		return "ReplicaGone", corev1.EventTypeNormal, "the replica of Pod " + c.Pod + " has left the fleet"
	case c.State == discovery.Serving && c.Before == discovery.LeftOut:
		return "ReplicaJoined", corev1.EventTypeNormal, "Pod " + c.Pod + " is a replica of the fleet"
	case c.State == discovery.Serving:
		return "ReplicaServes", corev1.EventTypeNormal, "the replica of Pod " + c.Pod + " takes new requests again"
	case c.State == discovery.Draining:
		return "DrainBegun", corev1.EventTypeNormal, "the replica of Pod " + c.Pod + " takes no new requests, and running ones migrate"
	case c.State == discovery.Kept:
		return "ReplicaKept", corev1.EventTypeWarning, "the replica of Pod " + c.Pod + " stays in the fleet"
	}
	return "PodLeftOut", corev1.EventTypeWarning, "Pod " + c.Pod + " is no replica"
}

// budget allows a burst of Events, and then one in each interval.
type budget struct {
	left int
	at   time.Time // when left was last raised; zero: not begun
}

// take reports whether one more Event may be written at now.
func (b *budget) take(now time.Time) bool {
	if b.at.IsZero() {
		b.at = now
	}
	if more := int(now.Sub(b.at) / eventInterval); more > 0 {
		b.left, b.at = min(b.left+more, eventBurst), b.at.Add(time.Duration(more)*eventInterval)
	}
	if b.left == 0 {
		return false
	}
	b.left--
	return true
}
