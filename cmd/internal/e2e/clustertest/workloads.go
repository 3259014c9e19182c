package clustertest

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apitypes "k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// templateAnnotation is the annotation of Pods with the digest of their template.
const templateAnnotation = "clustertest/template"

// syncDeployments acts for each Deployment, and removes the Pods of those that are gone.
func (c *Cluster) syncDeployments(ctx context.Context, o objects) error {
	list, err := c.cfg.Client.AppsV1().Deployments(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	present := map[apitypes.UID]bool{}
	for i := range list.Items {
		d := &list.Items[i]
		if d.DeletionTimestamp == nil {
			present[d.UID] = true
			err = errors.Join(err, c.syncDeployment(ctx, d, o.pods))
		}
	}
	return errors.Join(err, c.removeOrphans(ctx, o.pods, "Deployment", present))
}

func (c *Cluster) syncDeployment(ctx context.Context, d *appsv1.Deployment, pods []corev1.Pod) error {
	wanted := int(*d.Spec.Replicas)
	surge, unavailable := 1, 0
	if u := d.Spec.Strategy.RollingUpdate; u != nil {
		surge, _ = intstr.GetScaledValueFromIntOrPercent(u.MaxSurge, wanted, true)
		unavailable, _ = intstr.GetScaledValueFromIntOrPercent(u.MaxUnavailable, wanted, false)
	}
	digest := digestOf(d.Spec.Template)
	members, err := c.membersOf(ctx, pods, d.UID, digest)
	create, remove := stepDeployment(wanted, surge, unavailable, members)
	for range create {
		p := newPod(d.Namespace, d.Spec.Template, metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment")), digest)
		p.GenerateName = d.Name + "-"
		err = errors.Join(err, c.createPod(ctx, p))
	}
	for _, name := range remove {
		err = errors.Join(err, c.deletePod(ctx, d.Namespace, name))
	}
	if err != nil {
		return fmt.Errorf("Deployment %s/%s: %w", d.Namespace, d.Name, err)
	}
	return c.writeDeploymentStatus(ctx, d, members)
}

// writeDeploymentStatus writes how many Pods a Deployment has, where that has changed.
func (c *Cluster) writeDeploymentStatus(ctx context.Context, d *appsv1.Deployment, members []member) error {
	status := *d.Status.DeepCopy()
	status.ObservedGeneration = d.Generation
	status.Replicas, status.UpdatedReplicas, status.ReadyReplicas = 0, 0, 0
	for _, m := range members {
		if m.terminates {
			continue
		}
		status.Replicas++
		if m.current {
			status.UpdatedReplicas++
		}
		if m.ready {
			status.ReadyReplicas++
		}
	}
	status.AvailableReplicas = status.ReadyReplicas
	if reflect.DeepEqual(status, d.Status) {
		return nil
	}
	changed := d.DeepCopy()
	changed.Status = status
	_, err := c.cfg.Client.AppsV1().Deployments(d.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	return err
}

// syncStatefulSets acts for each StatefulSet, and removes the Pods of those that are gone.
func (c *Cluster) syncStatefulSets(ctx context.Context, o objects) error {
	list, err := c.cfg.Client.AppsV1().StatefulSets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	present := map[apitypes.UID]bool{}
	for i := range list.Items {
		s := &list.Items[i]
		if s.DeletionTimestamp == nil {
			present[s.UID] = true
			err = errors.Join(err, c.syncStatefulSet(ctx, s, o.pods))
		}
	}
	return errors.Join(err, c.removeOrphans(ctx, o.pods, "StatefulSet", present))
}

func (c *Cluster) syncStatefulSet(ctx context.Context, s *appsv1.StatefulSet, pods []corev1.Pod) error {
	digest := digestOf(s.Spec.Template)
	members, err := c.membersOf(ctx, pods, s.UID, digest)
	create, remove := stepStatefulSet(s.Name, int(*s.Spec.Replicas), members)
	for _, ordinal := range create {
		p := newPod(s.Namespace, s.Spec.Template, metav1.NewControllerRef(s, appsv1.SchemeGroupVersion.WithKind("StatefulSet")), digest)
		p.Name = fmt.Sprintf("%s-%d", s.Name, ordinal)
		err = errors.Join(err, c.createPod(ctx, p))
	}
	if remove != "" {
		err = errors.Join(err, c.deletePod(ctx, s.Namespace, remove))
	}
	if err != nil {
		return fmt.Errorf("StatefulSet %s/%s: %w", s.Namespace, s.Name, err)
	}
	return nil
}

// removeOrphans deletes the Pods of workloads of a kind that are gone.
func (c *Cluster) removeOrphans(ctx context.Context, pods []corev1.Pod, kind string, present map[apitypes.UID]bool) (err error) {
	for i := range pods {
		p := &pods[i]
		if owner := metav1.GetControllerOf(p); owner != nil && owner.Kind == kind && !present[owner.UID] && p.DeletionTimestamp == nil {
			err = errors.Join(err, c.deletePod(ctx, p.Namespace, p.Name))
		}
	}
	return err
}

// membersOf returns the Pods of a workload, and deletes those that have failed.
func (c *Cluster) membersOf(ctx context.Context, pods []corev1.Pod, owner apitypes.UID, digest string) (out []member, err error) {
	for i := range pods {
		p := &pods[i]
		if o := metav1.GetControllerOf(p); o == nil || o.UID != owner {
			continue
		}
		terminates := p.DeletionTimestamp != nil
		if p.Status.Phase == corev1.PodFailed && !terminates {
			terminates = true
			err = errors.Join(err, c.deletePod(ctx, p.Namespace, p.Name))
		}
		out = append(out, member{p.Name, p.Annotations[templateAnnotation] == digest, isReady(p), terminates})
	}
	return out, err
}

// digestOf identifies a template.
func digestOf(t corev1.PodTemplateSpec) string {
	text, err := json.Marshal(t)
	if err != nil {
		panic("internal error: " + err.Error()) // it came as JSON
	}
	return fmt.Sprintf("%x", sha256.Sum256(text))[:16]
}

// newPod returns a Pod of a template.
func newPod(namespace string, t corev1.PodTemplateSpec, owner *metav1.OwnerReference, digest string) *corev1.Pod {
	p := &corev1.Pod{Spec: *t.Spec.DeepCopy(), ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Labels: maps.Clone(t.Labels), Annotations: maps.Clone(t.Annotations), OwnerReferences: []metav1.OwnerReference{*owner},
	}}
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[templateAnnotation] = digest
	return p
}

// createPod creates a Pod on a node of its own.
func (c *Cluster) createPod(ctx context.Context, p *corev1.Pod) error {
	p.Spec.NodeName = c.newNode()
	_, err := c.cfg.Client.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
	return err
}
