package clustertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apitypes "k8s.io/apimachinery/pkg/types"
)

// Pod is a Pod that runs.
type Pod struct {
	ScheduledPod
	// Deleted is closed when the Pod is to end.
	Deleted <-chan struct{}
	// SetReady writes that the Pod runs, and whether it serves.
	SetReady func(ctx context.Context, ready bool) error
}

// RunStarted returns a RunPod for Pods that serve as soon as start returns, and that stop ends. The context of start ends when
// the Pod is deleted, too.
func RunStarted(start func(ctx context.Context, p Pod) (stop func(), err error)) func(context.Context, Pod) error {
	return func(ctx context.Context, p Pod) error {
		present, cancel := context.WithCancel(ctx)
		var watch sync.WaitGroup
		defer watch.Wait()
		defer cancel()
		watch.Go(func() {
			select {
			case <-p.Deleted:
				cancel()
			case <-present.Done():
			}
		})
		stop, err := start(present, p)
		if err != nil {
			return err
		}
		defer stop()
		if err := p.SetReady(present, true); err != nil && present.Err() == nil {
			return err
		}
		<-present.Done()
		return nil
	}
}

// instance is a Pod that runs, or that ends. It belongs to Run's loop.
type instance struct {
	deleted  chan struct{}
	deleting bool          // deleted is closed
	ended    chan struct{} // closed when RunPod has returned
	err      error         // of RunPod; valid once ended is closed
}

// end asks for the end.
func (i *instance) end() {
	if !i.deleting {
		i.deleting = true
		close(i.deleted)
	}
}

func (i *instance) hasEnded() bool {
	select {
	case <-i.ended:
		return true
	default:
		return false
	}
}

// syncPods gives nodes to new Pods, runs them, ends those that are deleted, and removes those that have ended.
func (c *Cluster) syncPods(ctx context.Context, o objects) error {
	var errs error
	seen := map[string]bool{}
	for i := range o.pods {
		p := &o.pods[i]
		seen[string(p.UID)] = true
		if err := c.syncPod(ctx, p, o.services); err != nil {
			errs = errors.Join(errs, fmt.Errorf("Pod %s/%s: %w", p.Namespace, p.Name, err))
		}
	}
	for uid, i := range c.running {
		if !seen[uid] { // its object was removed by force
			i.end()
			if i.hasEnded() {
				delete(c.running, uid)
			}
		}
	}
	return errs
}

func (c *Cluster) syncPod(ctx context.Context, p *corev1.Pod, services []corev1.Service) error {
	uid := string(p.UID)
	i := c.running[uid]
	switch {
	case p.DeletionTimestamp != nil:
		if i != nil {
			i.end()
			if !i.hasEnded() {
				return nil
			}
		}
		err := c.removePod(ctx, p)
		if err == nil {
			delete(c.running, uid)
		}
		return err
	case p.Spec.NodeName == "":
		return c.cfg.Client.CoreV1().Pods(p.Namespace).Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: c.newNode()}}, metav1.CreateOptions{})
	case i == nil && p.Status.Phase != corev1.PodFailed:
		return c.startPod(ctx, p, services)
	case i != nil && i.hasEnded():
		err := c.patchStatus(ctx, p, statusOf(corev1.PodFailed, fmt.Sprint(i.err), false))
		if err == nil {
			delete(c.running, uid)
		}
		return err
	}
	return nil
}

// newNode returns the name of a node that no Pod has.
func (c *Cluster) newNode() string {
	c.nodes++
	return fmt.Sprint("node-", c.nodes)
}

// errEnded is the error of a Pod that ends before it is deleted, and names no cause.
var errEnded = errors.New("it has ended by itself")

// startPod runs a Pod on a goroutine of its own.
func (c *Cluster) startPod(ctx context.Context, p *corev1.Pod, services []corev1.Service) error {
	ip, err := c.cfg.Address()
	if err != nil {
		return err
	}
	// The address is known before the Pod serves, as from a kubelet.
	status := statusOf(corev1.PodPending, "", false)
	status.PodIP, status.PodIPs, status.HostIP = ip.String(), []corev1.PodIP{{IP: ip.String()}}, c.cfg.Host.String()
	now := metav1.Now()
	status.StartTime = &now
	if err := c.patchStatus(ctx, p, status); err != nil {
		return err
	}
	i := &instance{deleted: make(chan struct{}), ended: make(chan struct{})}
	c.running[string(p.UID)] = i
	c.cfg.Logger.Info("Pod started", "pod", p.Namespace+"/"+p.Name, "ip", ip)
	pod := Pod{ScheduledPod: ScheduledPod{Pod: p, IP: ip, Host: c.cfg.Host, Services: services}, Deleted: i.deleted, SetReady: func(ctx context.Context, ready bool) error {
		return c.patchStatus(ctx, p, statusOf(corev1.PodRunning, "", ready))
	}}
	c.instances.Go(func() {
		defer close(i.ended)
		err := c.cfg.RunPod(ctx, pod)
		select {
		case <-i.deleted:
		default:
			if err == nil {
				err = errEnded
			}
		}
		if i.err = err; err != nil && ctx.Err() == nil {
			c.addFailure(fmt.Errorf("Pod %s/%s: %w", p.Namespace, p.Name, err))
		}
	})
	return nil
}

func (c *Cluster) addFailure(err error) {
	c.cfg.Logger.Error("Pod failed", "error", err)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures = append(c.failures, err)
}

// removePod removes the object of a Pod that has ended.
func (c *Cluster) removePod(ctx context.Context, p *corev1.Pod) error {
	err := c.cfg.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &p.UID}})
	if kerrors.IsNotFound(err) || kerrors.IsConflict(err) { // another Pod has its name already
		return nil
	}
	return err
}

// deletePod deletes a Pod, which then ends.
func (c *Cluster) deletePod(ctx context.Context, namespace, name string) error {
	err := c.cfg.Client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if kerrors.IsNotFound(err) {
		return nil
	}
	return err
}

// statusOf returns the status of a Pod that is in a phase and has a node.
func statusOf(phase corev1.PodPhase, message string, ready bool) corev1.PodStatus {
	status := corev1.PodStatus{Phase: phase, Message: message}
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		state := corev1.ConditionTrue
		if !ready && (kind == corev1.ContainersReady || kind == corev1.PodReady) {
			state = corev1.ConditionFalse
		}
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: state, LastTransitionTime: metav1.Now()})
	}
	return status
}

// patchStatus changes the status of a Pod; conditions of others, such as those of readiness gates, stay. It does nothing if the
// Pod was removed, also if another one has its name.
func (c *Cluster) patchStatus(ctx context.Context, p *corev1.Pod, status corev1.PodStatus) error {
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": status})
	if err != nil {
		return err
	}
	_, err = c.cfg.Client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, apitypes.StrategicMergePatchType, text, metav1.PatchOptions{}, "status")
	// The API server refuses another UID as an invalid change, not as a conflict.
	cause, _ := kerrors.StatusCause(err, metav1.CauseTypeFieldValueInvalid)
	if kerrors.IsNotFound(err) || cause.Field == "metadata.uid" { // it was removed meanwhile
		return nil
	}
	return err
}

// isReady reports whether a Pod has the condition Ready.
func isReady(p *corev1.Pod) bool {
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}
