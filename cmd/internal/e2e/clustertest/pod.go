package clustertest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// runningPod is a Pod whose containers run.
type runningPod struct {
	cfg       *RunnerConfig
	pod       Pod
	namespace *Namespace
	dir       string

	mu        sync.Mutex
	processes map[string]*process // by container; guarded by mu
}

// live starts the containers, reports whether they are ready, and ends them when the Pod is deleted. It returns as soon as ctx
// ends.
func (r *runningPod) live(ctx context.Context) error {
	if err := r.prepareVolumes(ctx); err != nil {
		return err
	}
	living, stop := context.WithCancel(ctx) // until the Pod is deleted
	var watch sync.WaitGroup
	defer watch.Wait()
	defer stop()
	watch.Go(func() {
		select {
		case <-r.pod.Deleted:
			stop()
		case <-living.Done():
		}
	})
	err := r.start(living)
	for reported, wasReady := false, false; err == nil; {
		if ready := r.probeAll(living); (ready != wasReady || !reported) && living.Err() == nil {
			if err := r.pod.SetReady(ctx, ready); err != nil {
				r.cfg.Logger.Warn("readiness not written, trying again", "pod", r.pod.Name, "error", err)
			} else {
				reported, wasReady = true, ready
			}
		}
		select {
		case <-living.Done():
			return r.terminate(ctx)
		case <-time.After(probePeriod):
		}
		if err == nil {
			err = r.ended()
		}
	}
	if ctx.Err() == nil && living.Err() != nil {
		return r.terminate(ctx) // it was deleted while it started
	}
	return err
}

// isSidecar reports whether an init container goes on beside the others.
func isSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// start starts the containers in order: init containers one after the other, each when the one before has started or, if it is no
// sidecar, has ended.
func (r *runningPod) start(ctx context.Context) error {
	for i := range r.pod.Spec.InitContainers {
		c := &r.pod.Spec.InitContainers[i]
		p, err := r.launch(c)
		if err != nil {
			return err
		}
		if !isSidecar(c) {
			select {
			case <-p.ended:
				if p.err != nil {
					return fmt.Errorf("init container %s: %w", c.Name, p.err)
				}
			case <-ctx.Done():
				return ctx.Err()
			}
			r.forget(c.Name)
		} else if err := r.awaitStartup(ctx, c); err != nil {
			return err
		}
	}
	for i := range r.pod.Spec.Containers {
		if _, err := r.launch(&r.pod.Spec.Containers[i]); err != nil {
			return err
		}
	}
	for i := range r.pod.Spec.Containers {
		if err := r.awaitStartup(ctx, &r.pod.Spec.Containers[i]); err != nil {
			return err
		}
	}
	return nil
}

// awaitStartup waits until a container's startup probe succeeds.
func (r *runningPod) awaitStartup(ctx context.Context, c *corev1.Container) error {
	for c.StartupProbe != nil && !r.probe(ctx, c, c.StartupProbe) {
		if err := r.ended(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(probePeriod):
		}
	}
	return nil
}

// ended returns an error if a container has ended.
func (r *runningPod) ended() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, p := range r.processes {
		select {
		case <-p.ended:
			return fmt.Errorf("container %s has ended: %v\n%s", name, p.err, p.tail())
		default:
		}
	}
	return nil
}

// terminate ends the containers as a kubelet does: hooks and SIGTERM for the containers, then SIGTERM for the sidecars, the last first.
func (r *runningPod) terminate(ctx context.Context) error {
	grace := 30 * time.Second
	if s := r.pod.Spec.TerminationGracePeriodSeconds; s != nil {
		grace = time.Duration(*s) * time.Second
	}
	grace = min(grace, maxGrace)
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	var all sync.WaitGroup
	errs := make([]error, len(r.pod.Spec.Containers))
	for i := range r.pod.Spec.Containers {
		c := &r.pod.Spec.Containers[i]
		all.Go(func() {
			if c.Lifecycle != nil && c.Lifecycle.PreStop != nil && c.Lifecycle.PreStop.Exec != nil {
				if out, err := r.exec(ctx, c.Name, c.Lifecycle.PreStop.Exec.Command); err != nil {
					errs[i] = fmt.Errorf("preStop of %s: %w: %s", c.Name, err, out)
				}
			}
			errs[i] = errors.Join(errs[i], r.stop(ctx, c.Name))
		})
	}
	all.Wait()
	err := errors.Join(errs...)
	for i := len(r.pod.Spec.InitContainers) - 1; i >= 0; i-- {
		if c := &r.pod.Spec.InitContainers[i]; isSidecar(c) {
			err = errors.Join(err, r.stop(ctx, c.Name))
		}
	}
	return err
}

// maxGrace bounds what a Pod takes to end, also where its manifest allows hours.
const maxGrace = 4 * time.Minute

// stop sends SIGTERM to a container and waits for its end.
func (r *runningPod) stop(ctx context.Context, name string) error {
	r.mu.Lock()
	p := r.processes[name]
	r.mu.Unlock()
	if p == nil {
		return nil
	}
	p.signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-ctx.Done():
		p.signal(syscall.SIGKILL)
		<-p.ended
		return fmt.Errorf("container %s was killed: it had not ended after SIGTERM\n%s", name, p.tail())
	}
	r.forget(name)
	if p.err != nil {
		return fmt.Errorf("container %s: %w after SIGTERM\n%s", name, p.err, p.tail())
	}
	r.cfg.Logger.Info("container ended", "pod", r.pod.Name, "container", name, "log", strings.TrimSpace(p.tail()))
	return nil
}

// kill ends all containers.
func (r *runningPod) kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.processes {
		p.signal(syscall.SIGKILL)
		<-p.ended
	}
}

func (r *runningPod) forget(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.processes, name)
}

// probePeriod is the time between two probes, which may be less than a manifest says so that tests take less time.
const probePeriod = time.Second

// probeAll reports whether all containers are ready.
func (r *runningPod) probeAll(ctx context.Context) bool {
	for _, list := range [][]corev1.Container{r.pod.Spec.InitContainers, r.pod.Spec.Containers} {
		for i := range list {
			if p := list[i].ReadinessProbe; p != nil && !r.probe(ctx, &list[i], p) {
				return false
			}
		}
	}
	return true
}

// probe probes a container once.
func (r *runningPod) probe(ctx context.Context, c *corev1.Container, p *corev1.Probe) bool {
	ctx, cancel := context.WithTimeout(ctx, max(time.Second, time.Duration(p.TimeoutSeconds)*time.Second))
	defer cancel()
	switch {
	case p.Exec != nil:
		_, err := r.exec(ctx, c.Name, p.Exec.Command)
		return err == nil
	case p.TCPSocket != nil:
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(r.pod.IP.String(), r.port(c, p.TCPSocket.Port.String())))
		if err == nil {
			conn.Close()
		}
		return err == nil
	case p.HTTPGet != nil:
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(r.pod.IP.String(), r.port(c, p.HTTPGet.Port.String()))+p.HTTPGet.Path, nil)
		if err != nil {
			return false
		}
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Do(req)
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode < http.StatusBadRequest
	}
	return false
}

// port returns the number of a port of a container that may be a name.
func (r *runningPod) port(c *corev1.Container, port string) string {
	for _, p := range c.Ports {
		if p.Name == port {
			return strconv.Itoa(int(p.ContainerPort))
		}
	}
	return port
}
