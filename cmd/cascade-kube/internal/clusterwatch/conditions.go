package clusterwatch

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/cascadeinfer/cascade/cmd/internal/discovery"
	"github.com/cascadeinfer/cascade/internal/cleantext"
)

// Limits of conditions.
const (
	maxReason         = 64  // bytes that are kept of a Pod's own
	maxMessage        = 512 // bytes
	conditionTimeout  = 5 * time.Second
	conditionBatch    = 100              // are written before the next look at what should be written
	conditionFailures = 10               // in a row end a batch: the next one comes with the next Set
	conditionRetry    = 15 * time.Second // after a failure; until then others have their turn
	conditionRewrite  = 10 * time.Second // between two writes of the same condition of one Pod
)

// ConditionsConfig is the configuration of Conditions.
type ConditionsConfig struct {
	Client    kubernetes.Interface // required
	Namespace string               // of the Pods; required
	Logger    *slog.Logger         // nil discards
}

// Conditions writes the condition discovery.ConditionType into the status of Pods, where they lack it. Each
// write names the UID of its Pod, so that no other Pod of that name gets it.
//
// Several control planes write to the same Pods. One that finds another reason than its own there leaves
// it, and one that finds another status writes it again, once in conditionRewrite: two that disagree cost
// the API server little.
type Conditions struct {
	cfg  ConditionsConfig
	log  *slog.Logger
	wake chan struct{} // capacity 1

	mu     sync.Mutex
	wanted []discovery.PodCondition // of the last Set; guarded by mu
	fault  string                   // why a condition could not be written; guarded by mu
	since  time.Time                // of fault; guarded by mu

	written map[string]conditionRecord // by the UID of the Pod; owned by Run
	// begin is the index in wanted at which the next batch begins: behind the failures of the last one, so that
	// Pods whose conditions always fail do not keep others waiting; owned by Run.
	begin int
}

// conditionRecord is what was written last to one Pod.
type conditionRecord struct {
	condition discovery.Condition
	at        time.Time
	failed    bool
}

// NewConditions returns Conditions. Nothing runs before Run.
func NewConditions(cfg ConditionsConfig) *Conditions {
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Conditions{cfg: cfg, log: log, wake: make(chan struct{}, 1), written: make(map[string]conditionRecord)}
}

// Set says what the conditions of all Pods should be, and what they are. What could not be written is
// tried again at the next Set. It never blocks, and may be called from any goroutine.
func (c *Conditions) Set(all []discovery.PodCondition) {
	c.mu.Lock()
	c.wanted = all
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Faults returns why conditions cannot be written and since when; none if all is well.
func (c *Conditions) Faults(now time.Time) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault == "" {
		return nil
	}
	return []string{fmt.Sprintf("conditions of Pods: %s (for %v; Pods with the readiness gate wait)", c.fault, now.Sub(c.since).Round(time.Second))}
}

// Run writes conditions until ctx ends, and then returns nil.
func (c *Conditions) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
		}
		for c.writeBatch(ctx) {
		}
	}
}

// writeBatch writes conditions that are due, at most conditionBatch, and reports whether there may be more.
func (c *Conditions) writeBatch(ctx context.Context) (more bool) {
	c.mu.Lock()
	wanted := c.wanted
	c.mu.Unlock()
	c.forgetOthers(wanted)
	writes, row := 0, 0
	begin, next := c.begin, 0 // without a failure, what ends a Pod's readiness comes first again
	var last error
	for i := range wanted {
		index := (begin + i) % len(wanted)
		if writes == conditionBatch || row == conditionFailures || ctx.Err() != nil {
			if last != nil {
				next = index
			}
			break
		}
		p := wanted[index]
		p.Want.Message = cleantext.Truncate(p.Want.Message, maxMessage)
		if p.Have != nil && *p.Have == p.Want {
			c.written[p.UID] = conditionRecord{condition: p.Want}
			continue
		}
		if !c.due(p, time.Now()) {
			continue
		}
		writes++
		err := c.write(ctx, p)
		c.written[p.UID] = conditionRecord{p.Want, time.Now(), err != nil}
		if err == nil {
			row = 0
			continue
		}
		row++
		last = fmt.Errorf("Pod %s: %w", p.Pod, err)
	}
	c.begin = next
	if ctx.Err() == nil {
		c.noteResult(last)
	}
	return writes == conditionBatch && ctx.Err() == nil
}

// forgetOthers forgets what was written to Pods that are gone.
func (c *Conditions) forgetOthers(wanted []discovery.PodCondition) {
	present := make(map[string]bool, len(wanted))
	for _, p := range wanted {
		present[p.UID] = true
	}
	for uid := range c.written {
		if !present[uid] {
			delete(c.written, uid)
		}
	}
}

// due reports whether a Pod's condition, which is not as it should be, has to be written at now.
func (c *Conditions) due(p discovery.PodCondition, now time.Time) bool {
	before, ok := c.written[p.UID]
	if !ok || before.condition != p.Want {
		return true
	}
	if before.failed {
		return now.Sub(before.at) >= conditionRetry
	}
	// It was written. The Pods that Set has may be older than that, or another process has replaced it.
	return (p.Have == nil || p.Have.Ready != p.Want.Ready) && now.Sub(before.at) >= conditionRewrite
}

// write writes the condition of one Pod. A Pod that is gone is no error.
func (c *Conditions) write(ctx context.Context, p discovery.PodCondition) error {
	condition := map[string]any{"type": discovery.ConditionType, "status": corev1.ConditionFalse, "reason": p.Want.Reason, "message": p.Want.Message}
	if p.Want.Ready {
		condition["status"] = corev1.ConditionTrue
	}
	if p.Have == nil || p.Have.Ready != p.Want.Ready {
		condition["lastTransitionTime"] = metav1.Now()
	}
	// A strategic merge patch replaces the condition of this type alone; a UID that differs is a conflict.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": map[string]any{"conditions": []any{condition}}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, conditionTimeout)
	defer cancel()
	_, err = c.cfg.Client.CoreV1().Pods(c.cfg.Namespace).Patch(ctx, p.Pod, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// noteResult records the last error of a batch. A fault ends when no Pod waits after an error.
func (c *Conditions) noteResult(err error) {
	waiting := slices.ContainsFunc(slices.Collect(maps.Values(c.written)), func(r conditionRecord) bool { return r.failed })
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil:
		if c.fault == "" {
			c.since = time.Now()
			c.log.Warn("condition of a Pod not written", "error", err)
		}
		c.fault = cleantext.Truncate(err.Error(), maxFault)
	case c.fault != "" && !waiting:
		c.log.Info("conditions of Pods are written again", "after", time.Since(c.since).Round(time.Millisecond))
		c.fault = ""
	}
}
