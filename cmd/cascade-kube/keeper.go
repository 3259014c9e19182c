package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/discovery"
)

// repeatPeriod is the time between two decisions without a change in the cluster: for a
// base file that has changed, and for a file that could not be written.
const repeatPeriod = 5 * time.Second

// keeperConfig is the configuration of a keeper.
type keeperConfig struct {
	file    discovery.FleetFile
	rules   discovery.Rules
	changed func([]discovery.Change)     // is given each change; must not block
	faults  func(now time.Time) []string // what of the cluster cannot be read, or written
	// conditions is given those of all Pods after each decision, and again after each repeatPeriod; must not
	// block. nil: nothing writes them.
	conditions func([]discovery.PodCondition)
	log        *slog.Logger
}

// keeper keeps the fleet file as the cluster is.
type keeper struct {
	cfg keeperConfig

	mu       sync.Mutex
	cluster  *discovery.Cluster // the last one; nil: none yet; guarded by mu
	replicas []config.Replica   // as last written; guarded by mu
	loaded   bool               // replicas were read from the file; guarded by mu
	// decisionPending says that the last decision was another one than before: the next may differ, too, as
	// what left the fleet makes room for others; guarded by mu.
	decisionPending bool
	base            []byte             // text of the base file at the last decision; guarded by mu
	last            discovery.Decision // in force; guarded by mu
	fault           string             // why the file is not as the cluster is; guarded by mu
	since           time.Time          // of fault; guarded by mu
	wroteAt         time.Time          // when the file was written, or found; zero: there is none; guarded by mu
	writes          uint64             // guarded by mu
}

func newKeeper(cfg keeperConfig) *keeper { return &keeper{cfg: cfg} }

// run repeats decisions until ctx ends.
func (k *keeper) run(ctx context.Context) error {
	k.mu.Lock()
	k.load()
	k.mu.Unlock()
	ticker := time.NewTicker(repeatPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			k.repeat()
		}
	}
}

// repeat decides again, if that could change anything.
func (k *keeper) repeat() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cluster == nil {
		return
	}
	if text, _, err := k.cfg.file.ReadBase(); err != nil || k.fault != "" || k.decisionPending || !bytes.Equal(text, k.base) {
		k.decide(*k.cluster)
		return
	}
	k.showConditions()
}

// showConditions passes on the conditions of all Pods.
func (k *keeper) showConditions() {
	if k.cfg.conditions != nil && k.cluster != nil {
		k.cfg.conditions(discovery.Conditions(*k.cluster, k.last))
	}
}

// load reads the replicas that an earlier process wrote, once.
func (k *keeper) load() {
	if k.loaded {
		return
	}
	k.loaded = true
	var err error
	if k.replicas, err = k.cfg.file.Replicas(); err != nil {
		k.cfg.log.Warn("fleet file of an earlier process not read, beginning without it", "error", err)
	} else if len(k.replicas) > 0 {
		k.wroteAt, k.last = time.Now(), discovery.Restored(k.replicas) // the control plane has a file
	}
}

// apply decides for a cluster and writes the file.
func (k *keeper) apply(c discovery.Cluster) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cluster = &c
	k.decide(c)
}

// decide writes the replicas of a cluster. If anything fails, the file stays as it is, and the conditions of the
// last decision are passed on again.
func (k *keeper) decide(c discovery.Cluster) {
	text, base, err := k.cfg.file.ReadBase()
	if err != nil {
		k.showConditions()
		k.fail(err)
		return
	}
	k.load()
	k.base = text
	rules := k.cfg.rules
	rules.Base = base
	d, err := discovery.Decide(rules, c, k.replicas)
	if err != nil {
		k.publish(discovery.Decision{Replicas: k.last.Replicas, Pods: withLeftOut(k.last.Pods, d.Pods)})
		k.fail(err)
		return
	}
	written, err := k.cfg.file.Write(text, d.Replicas)
	if err != nil {
		k.showConditions()
		k.fail(err)
		return
	}
	if k.fault != "" {
		k.cfg.log.Info("fleet file is as the cluster is again", "after", time.Since(k.since).Round(time.Millisecond))
	}
	k.fault, k.replicas, k.decisionPending = "", d.Replicas, written
	if written {
		k.writes++
		k.cfg.log.Info("fleet file written", "file", k.cfg.file.Path, "replicas", len(d.Replicas), "draining", d.Count(discovery.Draining), "left_out", d.Count(discovery.LeftOut))
	}
	if k.wroteAt.IsZero() || written {
		k.wroteAt = time.Now()
	}
	k.publish(d)
}

// withLeftOut returns the states in force, and the Pods that a decision which is not in force leaves out.
func withLeftOut(inForce, tried []discovery.Status) []discovery.Status {
	type key struct{ pod, replica string }
	known := make(map[key]bool, len(inForce))
	var out []discovery.Status
	for _, s := range inForce {
		if s.State != discovery.LeftOut {
			out, known[key{s.Pod, s.Replica}] = append(out, s), true
		}
	}
	for _, s := range tried {
		if s.State == discovery.LeftOut && !known[key{s.Pod, s.Replica}] {
			out = append(out, s)
		}
	}
	return out
}

// publish replaces the decision that is shown, and passes on what has changed.
func (k *keeper) publish(d discovery.Decision) {
	changes := discovery.Changes(k.last, d)
	k.last = d
	k.showConditions()
	if len(changes) == 0 {
		return
	}
	for _, c := range changes {
		level := slog.LevelInfo
		if !c.Gone && (c.State == discovery.LeftOut || c.State == discovery.Kept) {
			level = slog.LevelWarn
		}
		k.cfg.log.Log(context.Background(), level, "replica changed", "pod", c.Pod, "replica", c.Replica, "state", c.State.String(), "gone", c.Gone, "reason", c.Reason)
	}
	k.cfg.changed(changes)
}

// fail notes why the file is not as the cluster is, and logs it if it is another reason.
func (k *keeper) fail(err error) {
	if k.fault == "" {
		k.since = time.Now()
	}
	if text := err.Error(); text != k.fault {
		k.fault = text
		k.cfg.log.Error("fleet file not changed, the last replicas stay", "error", err)
	}
}

// status is what /status shows.
type status struct {
	File      string      `json:"file"`
	WrittenAt *time.Time  `json:"written_at"` // null: not yet
	Replicas  int         `json:"replicas"`
	Faults    []string    `json:"faults"`
	Pods      []podStatus `json:"pods"`
	writes    uint64
	counts    map[discovery.State]int
}

type podStatus struct {
	Pod     string `json:"pod"`
	Replica string `json:"replica,omitempty"`
	State   string `json:"state"`
	Reason  string `json:"reason,omitempty"`
}

// status returns what discovery has found.
func (k *keeper) status(now time.Time) status {
	faults := k.cfg.faults(now)
	k.mu.Lock()
	defer k.mu.Unlock()
	s := status{File: k.cfg.file.Path, Replicas: len(k.replicas), Faults: faults, Pods: []podStatus{}, writes: k.writes, counts: make(map[discovery.State]int)}
	if s.Faults == nil {
		s.Faults = []string{}
	}
	if k.fault != "" {
		s.Faults = append(s.Faults, fmt.Sprintf("%s (for %v; the last replicas stay)", k.fault, now.Sub(k.since).Round(time.Second)))
	}
	if !k.wroteAt.IsZero() {
		at := k.wroteAt
		s.WrittenAt = &at
	}
	for _, p := range k.last.Pods {
		s.counts[p.State]++
		s.Pods = append(s.Pods, podStatus{p.Pod, p.Replica, p.State.String(), p.Reason})
	}
	return s
}
