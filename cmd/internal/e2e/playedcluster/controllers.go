package playedcluster

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// templateAnnotation is the annotation of Pods with the digest of their template.
const templateAnnotation = "playedcluster/template"

// member is a Pod of a workload, as its controller sees it.
type member struct {
	name              string
	current           bool // it has the present template
	ready, terminates bool
}

// isReady reports whether a Pod has the condition Ready.
func isReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// stepDeployment returns how many Pods a Deployment creates now, and which it deletes. During an update there are at most
// surge Pods more than wanted, and at most unavailable fewer are ready.
func stepDeployment(wanted, surge, unavailable int, members []member) (create int, remove []string) {
	present := slices.DeleteFunc(slices.Clone(members), func(m member) bool { return m.terminates })
	current, ready := 0, 0
	for _, m := range present {
		if m.current {
			current++
		}
		if m.ready {
			ready++
		}
	}
	create = max(0, min(wanted-current, wanted+surge-len(present)))
	// Old ones go first, those that are not ready before others, the last by name before the first.
	slices.SortFunc(present, func(a, b member) int {
		return cmp.Or(compareBools(a.current, b.current), compareBools(a.ready, b.ready), cmp.Compare(b.name, a.name))
	})
	old, excess := len(present)-current, len(present)-wanted
	for _, m := range present {
		if m.current && excess <= old || m.ready && ready <= wanted-unavailable {
			continue
		}
		remove = append(remove, m.name)
		excess--
		if !m.current {
			old--
		}
		if m.ready {
			ready--
		}
	}
	return create, remove
}

// stepStatefulSet returns the ordinals of the Pods that a StatefulSet creates now, and which Pod it deletes: one at a
// time, the last first, while all others are ready.
func stepStatefulSet(name string, wanted int, members []member) (create []int, remove string) {
	byName := map[string]member{}
	for _, m := range members {
		byName[m.name] = m
	}
	allReady := true
	for i := range wanted {
		m, ok := byName[fmt.Sprintf("%s-%d", name, i)]
		if !ok {
			create = append(create, i)
		}
		allReady = allReady && ok && m.ready && !m.terminates
		delete(byName, m.name)
	}
	for _, m := range slices.Backward(slices.Sorted(maps.Keys(byName))) {
		if !byName[m].terminates {
			return create, m
		}
	}
	for i := wanted - 1; i >= 0 && allReady; i-- {
		for _, m := range members {
			if m.name == fmt.Sprintf("%s-%d", name, i) && !m.current {
				return create, m.name
			}
		}
	}
	return create, ""
}

// compareBools orders false before true.
func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// controlDeployments acts for each Deployment.
func (c *Cluster) controlDeployments(ctx context.Context, pods []corev1.Pod) error {
	list, err := c.cfg.Client.AppsV1().Deployments(c.cfg.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	alive := map[workload]bool{}
	for i := range list.Items {
		d := &list.Items[i]
		alive[workload{"Deployment", d.Name}] = true
		wanted := int(*d.Spec.Replicas)
		surge, unavailable := 1, 0
		if u := d.Spec.Strategy.RollingUpdate; u != nil {
			surge, _ = intstr.GetScaledValueFromIntOrPercent(u.MaxSurge, wanted, true)
			unavailable, _ = intstr.GetScaledValueFromIntOrPercent(u.MaxUnavailable, wanted, false)
		}
		digest := digestOf(d.Spec.Template)
		create, remove := stepDeployment(wanted, surge, unavailable, membersOf(pods, "Deployment", d.Name, digest))
		for range create {
			p := newPod(d.Spec.Template, metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment")), digest)
			p.GenerateName = d.Name + "-"
			err = errors.Join(err, c.createPod(ctx, p))
		}
		for _, name := range remove {
			err = errors.Join(err, c.deletePod(ctx, name))
		}
	}
	return errors.Join(err, c.removeOrphans(ctx, pods, "Deployment", alive))
}

// controlStatefulSets acts for each StatefulSet.
func (c *Cluster) controlStatefulSets(ctx context.Context, pods []corev1.Pod) error {
	list, err := c.cfg.Client.AppsV1().StatefulSets(c.cfg.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	alive := map[workload]bool{}
	for i := range list.Items {
		s := &list.Items[i]
		alive[workload{"StatefulSet", s.Name}] = true
		digest := digestOf(s.Spec.Template)
		create, remove := stepStatefulSet(s.Name, int(*s.Spec.Replicas), membersOf(pods, "StatefulSet", s.Name, digest))
		for _, ordinal := range create {
			p := newPod(s.Spec.Template, metav1.NewControllerRef(s, appsv1.SchemeGroupVersion.WithKind("StatefulSet")), digest)
			p.Name = fmt.Sprintf("%s-%d", s.Name, ordinal)
			err = errors.Join(err, c.createPod(ctx, p))
		}
		if remove != "" {
			err = errors.Join(err, c.deletePod(ctx, remove))
		}
	}
	return errors.Join(err, c.removeOrphans(ctx, pods, "StatefulSet", alive))
}

// workload is a Deployment or a StatefulSet.
type workload struct{ kind, name string }

// removeOrphans deletes the Pods of workloads that are gone.
func (c *Cluster) removeOrphans(ctx context.Context, pods []corev1.Pod, kind string, alive map[workload]bool) (err error) {
	for i := range pods {
		owner := metav1.GetControllerOf(&pods[i])
		if owner != nil && owner.Kind == kind && !alive[workload{kind, owner.Name}] && pods[i].DeletionTimestamp == nil {
			err = errors.Join(err, c.deletePod(ctx, pods[i].Name))
		}
	}
	return err
}

// membersOf returns the Pods of a workload.
func membersOf(pods []corev1.Pod, kind, name, digest string) (out []member) {
	for i := range pods {
		p := &pods[i]
		if o := metav1.GetControllerOf(p); o != nil && o.Kind == kind && o.Name == name {
			out = append(out, member{p.Name, p.Annotations[templateAnnotation] == digest, isReady(p), p.DeletionTimestamp != nil})
		}
	}
	return out
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
func newPod(t corev1.PodTemplateSpec, owner *metav1.OwnerReference, digest string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(t.Labels), Annotations: maps.Clone(t.Annotations), OwnerReferences: []metav1.OwnerReference{*owner}}, Spec: *t.Spec.DeepCopy()}
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[templateAnnotation] = digest
	return p
}

// createPod creates a Pod on a node of its own.
func (c *Cluster) createPod(ctx context.Context, p *corev1.Pod) error {
	c.nodes++
	p.Spec.NodeName = fmt.Sprint("node-", c.nodes)
	_, err := c.cfg.Client.CoreV1().Pods(c.cfg.Namespace).Create(ctx, p, metav1.CreateOptions{})
	return err
}

// deletePod deletes a Pod, which then terminates.
func (c *Cluster) deletePod(ctx context.Context, name string) error {
	err := c.cfg.Client.CoreV1().Pods(c.cfg.Namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if kerrors.IsNotFound(err) {
		return nil
	}
	return err
}
