package clustertest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// RunnerConfig is the configuration of a Runner.
type RunnerConfig struct {
	// Source is where the files of volumes come from. Its Client is required.
	Source Source
	// Network has the addresses of Pods. Required.
	Network *Network
	// Dir is the folder for the files of Pods. Required.
	Dir string
	// Entrypoints are the programs of images, by the image's name without registry and tag, for containers without a command.
	Entrypoints map[string]string
	// CSI writes the files of a volume of a CSI driver for a Pod; without it there are no such volumes.
	CSI    func(volume *corev1.CSIVolumeSource, pod *corev1.Pod, dir string) error
	Logger *slog.Logger // gets what containers have written when they end; nil discards
}

func (c *RunnerConfig) validate() error {
	switch {
	case c.Source.Client == nil:
		return errors.New("runner: Source.Client is required")
	case c.Network == nil:
		return errors.New("runner: Network is required")
	case c.Dir == "":
		return errors.New("runner: Dir is required")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Runner runs Pods. Its methods may be called from any goroutine.
type Runner struct {
	cfg RunnerConfig

	mu   sync.Mutex
	pods map[string]*runningPod // by UID; guarded by mu
}

// NewRunner returns a Runner, which runs nothing yet.
func NewRunner(c RunnerConfig) (*Runner, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &Runner{cfg: c, pods: map[string]*runningPod{}}, nil
}

// Run runs a Pod until it is deleted and its containers have ended, until one fails, or until ctx ends; then it kills them. What
// the containers had is removed.
func (r *Runner) Run(ctx context.Context, p Pod) (err error) {
	uid := string(p.UID)
	namespace, err := r.cfg.Network.Add(p.IP)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, namespace.Remove()) }()
	pod := &runningPod{cfg: &r.cfg, pod: p, namespace: namespace, dir: filepath.Join(r.cfg.Dir, uid), processes: map[string]*process{}}
	defer os.RemoveAll(pod.dir)
	r.mu.Lock()
	r.pods[uid] = pod
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.pods, uid)
	}()
	defer pod.kill()
	return pod.live(ctx)
}

// Exec runs a command in a container of a Pod that is not being deleted, as "kubectl exec" does, and returns what it writes.
func (r *Runner) Exec(ctx context.Context, pod, container string, command ...string) (string, error) {
	for _, p := range r.named(pod) {
		select {
		case <-p.pod.Deleted:
		default:
			return p.exec(ctx, container, command)
		}
	}
	return "", fmt.Errorf("no Pod %s runs", pod)
}

// Logs returns the ends of what the running containers of a Pod have written, by container.
func (r *Runner) Logs(pod string) map[string]string {
	out := map[string]string{}
	for _, p := range r.named(pod) {
		p.mu.Lock()
		for name, c := range p.processes {
			out[name] = c.tail()
		}
		p.mu.Unlock()
	}
	return out
}

// named returns the Pods of a name, of which one at most is not being deleted in each namespace.
func (r *Runner) named(name string) (out []*runningPod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.pods {
		if p.pod.Name == name {
			out = append(out, p)
		}
	}
	return out
}
