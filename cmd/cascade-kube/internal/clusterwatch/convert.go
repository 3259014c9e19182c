package clusterwatch

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascadeinfer/cascade/cmd/internal/discovery"
	"github.com/cascadeinfer/cascade/internal/cleantext"
)

// poolResource is the resource of InferencePools.
var poolResource = schema.GroupVersionResource{Group: "inference.networking.k8s.io", Version: "v1", Resource: "inferencepools"}

// portName is the name of the port that counts where a slice has several.
const portName = "cascade"

// maxSelector bounds the labels of a selector.
const maxSelector = 64

// maxSettings bounds the labels and annotations that are kept of a Pod. There are fewer good ones, so that
// a Pod with more has one that is refused.
const maxSettings = 32

// selection is what an InferencePool or a Service selects.
type selection struct {
	uid      types.UID
	selector string   // of the Pods
	port     int      // 0: unknown
	ports    []uint16 // all of an InferencePool
	deleting bool     // the object has a deletionTimestamp
	err      error    // why the object cannot be used
}

// convertSource converts an InferencePool or a Service.
func (w *Watcher) convertSource(object any) (selection, bool) {
	switch o := object.(type) {
	case *unstructured.Unstructured:
		s, err := parsePool(o.Object)
		s.uid, s.deleting, s.err = o.GetUID(), o.GetDeletionTimestamp() != nil, err
		return s, o.GetName() == w.cfg.Pool
	case *corev1.Service:
		s := selection{uid: o.UID, deleting: o.DeletionTimestamp != nil}
		s.selector, s.err = selectorOf(o.Spec.Selector)
		return s, o.Name == w.cfg.Service
	}
	return selection{}, false
}

// maxPorts bounds the target ports of a pool, of which the API allows 8.
const maxPorts = 64

// parsePool reads the selector and the target ports of an InferencePool. Front ends serve at the
// first one; more are other engines of the same Pod, for which there is no migrator.
func parsePool(object map[string]any) (selection, error) {
	match, found, err := unstructured.NestedStringMap(object, "spec", "selector", "matchLabels")
	if err != nil || !found {
		return selection{}, errors.New("spec.selector.matchLabels: must be labels of the Pods")
	}
	ports, _, err := unstructured.NestedSlice(object, "spec", "targetPorts")
	if err != nil || len(ports) == 0 {
		return selection{}, errors.New("spec.targetPorts: must have the port at which migrators serve clients")
	}
	if len(ports) > maxPorts {
		return selection{}, fmt.Errorf("spec.targetPorts: has %d ports, at most %d are allowed", len(ports), maxPorts)
	}
	var s selection
	for i, p := range ports {
		entry, _ := p.(map[string]any)
		port, found, err := unstructured.NestedInt64(entry, "number")
		if err != nil || !found || port < 1 || port > 65535 {
			return selection{}, fmt.Errorf("spec.targetPorts[%d].number: must be a port, 1 to 65535", i)
		}
		s.ports = append(s.ports, uint16(port))
	}
	s.port = int(s.ports[0])
	s.selector, err = selectorOf(match)
	return s, err
}

// selectorOf returns the text of a selector. An empty one would select every Pod of the
// namespace.
func selectorOf(match map[string]string) (string, error) {
	switch {
	case len(match) == 0:
		return "", errors.New("its selector is empty: it must have labels that only the Pods of the fleet have")
	case len(match) > maxSelector:
		return "", fmt.Errorf("its selector has %d labels, at most %d are allowed", len(match), maxSelector)
	}
	set, err := labels.ValidatedSelectorFromSet(match)
	if err != nil {
		return "", fmt.Errorf("its selector: %w", err)
	}
	return set.String(), nil
}

// convertPod keeps what decisions need of a Pod.
func convertPod(object any) (discovery.Pod, bool) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return discovery.Pod{}, false
	}
	out := discovery.Pod{
		Name: pod.Name, UID: string(pod.UID), Node: pod.Spec.NodeName, IP: pod.Status.PodIP,
		Terminating: pod.DeletionTimestamp != nil,
		Ended:       pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
		Settings:    make(map[string]string),
	}
	out.Gated, out.Ready = readiness(pod)
	for _, c := range pod.Status.Conditions {
		if c.Type == discovery.ConditionType {
			out.Condition = &discovery.Condition{Ready: c.Status == corev1.ConditionTrue, Reason: strings.Clone(cleantext.Truncate(c.Reason, maxReason)), Message: strings.Clone(cleantext.Truncate(c.Message, maxMessage))}
		}
	}
	for _, all := range [...]map[string]string{pod.Labels, pod.Annotations} {
		for name, value := range all {
			if strings.HasPrefix(name, discovery.Prefix) && len(out.Settings) < maxSettings {
				out.Settings[name] = strings.Clone(value[:min(len(value), discovery.MaxSetting+1)]) // not the whole Pod
			}
		}
	}
	return out, true
}

// readiness reports whether a Pod has the readiness gate of discovery, and whether it is ready; that gate
// itself does not count, as it waits for the Pod to be a replica.
func readiness(pod *corev1.Pod) (gated, ready bool) {
	is := make(map[corev1.PodConditionType]bool, len(pod.Status.Conditions))
	for _, c := range pod.Status.Conditions {
		is[c.Type] = c.Status == corev1.ConditionTrue
	}
	others := true
	for _, g := range pod.Spec.ReadinessGates {
		if g.ConditionType == discovery.ConditionType {
			gated = true
		} else {
			others = others && is[g.ConditionType]
		}
	}
	if gated {
		return true, is[corev1.ContainersReady] && others
	}
	return false, is[corev1.PodReady]
}

// convertSlice keeps the endpoints of a slice that are Pods.
func convertSlice(object any) ([]discovery.Endpoint, bool) {
	slice, ok := object.(*discoveryv1.EndpointSlice)
	if !ok {
		return nil, false
	}
	port := 0
	for _, p := range slice.Ports {
		if p.Port != nil && (len(slice.Ports) == 1 || p.Name != nil && *p.Name == portName) {
			port = int(*p.Port)
		}
	}
	var out []discovery.Endpoint
	for _, e := range slice.Endpoints {
		if e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
			out = append(out, discovery.Endpoint{PodUID: string(e.TargetRef.UID), Port: port, Ready: e.Conditions.Ready == nil || *e.Conditions.Ready})
		}
	}
	return out, len(out) > 0
}
