package clustertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// The name of an EndpointSlice after that of its Service, and who writes it.
const (
	sliceSuffix = "-clustertest"
	managedBy   = "clustertest"
)

// Service is a Service, and what it leads to.
type Service struct {
	*corev1.Service
	// Endpoints are the addresses, host:port, that take connections, by the name of the Service's port. A Service without a
	// selector has none.
	Endpoints map[string][]string
}

// syncServices writes the EndpointSlices of Services with selectors, removes those of Services that are gone, gives load balancers
// the address of a Pod, and has the Services served.
func (c *Cluster) syncServices(ctx context.Context, o objects) error {
	var errs error
	present := map[string]bool{}
	all := make([]Service, 0, len(o.services))
	for i := range o.services {
		s := Service{Service: &o.services[i]}
		if len(s.Spec.Selector) > 0 && s.DeletionTimestamp == nil {
			present[s.Namespace+"/"+s.Name] = true
			slice := endpointSlice(s.Service, o.pods)
			s.Endpoints = readyEndpoints(slice)
			if err := errors.Join(c.writeSlice(ctx, slice), c.writeLoadBalancer(ctx, s.Service, slice)); err != nil {
				errs = errors.Join(errs, fmt.Errorf("Service %s/%s: %w", s.Namespace, s.Name, err))
			}
		}
		all = append(all, s)
	}
	for key, slice := range c.slices {
		if !present[key] {
			err := c.cfg.Client.DiscoveryV1().EndpointSlices(slice.Namespace).Delete(ctx, slice.Name, metav1.DeleteOptions{})
			if err == nil || kerrors.IsNotFound(err) {
				delete(c.slices, key)
				continue
			}
			errs = errors.Join(errs, err)
		}
	}
	return errors.Join(errs, c.cfg.Serve(all))
}

// writeLoadBalancer gives a Service of type LoadBalancer the address of its first ready Pod.
func (c *Cluster) writeLoadBalancer(ctx context.Context, s *corev1.Service, slice discoveryv1.EndpointSlice) error {
	first := slices.IndexFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool { return *e.Conditions.Ready })
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer || first < 0 {
		return nil
	}
	want := []corev1.LoadBalancerIngress{{IP: slice.Endpoints[first].Addresses[0]}}
	if has := s.Status.LoadBalancer.Ingress; len(has) == 1 && has[0].IP == want[0].IP {
		return nil
	}
	changed := s.DeepCopy()
	changed.Status.LoadBalancer.Ingress = want
	_, err := c.cfg.Client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	return err
}

// endpointSlice returns the EndpointSlice of a Service.
func endpointSlice(s *corev1.Service, pods []corev1.Pod) discoveryv1.EndpointSlice {
	out := discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: s.Name + sliceSuffix, Namespace: s.Namespace, Labels: map[string]string{discoveryv1.LabelServiceName: s.Name, discoveryv1.LabelManagedBy: managedBy}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	selector := labels.SelectorFromSet(s.Spec.Selector)
	for i := range pods {
		p := &pods[i]
		if p.Namespace != s.Namespace || !selector.Matches(labels.Set(p.Labels)) || p.Status.PodIP == "" || p.Status.Phase == corev1.PodFailed {
			continue
		}
		serving, terminating := isReady(p), p.DeletionTimestamp != nil
		ready := (serving || s.Spec.PublishNotReadyAddresses) && !terminating
		node := p.Spec.NodeName
		out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{p.Status.PodIP}, NodeName: &node, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: p.Name, Namespace: p.Namespace, UID: p.UID},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating},
		})
		if len(out.Ports) == 0 {
			out.Ports = targetPorts(s, p)
		}
	}
	slices.SortFunc(out.Endpoints, func(a, b discoveryv1.Endpoint) int { return cmp.Compare(a.TargetRef.Name, b.TargetRef.Name) })
	return out
}

// targetPorts returns the ports of a Service in a Pod.
func targetPorts(s *corev1.Service, pod *corev1.Pod) (out []discoveryv1.EndpointPort) {
	for _, p := range s.Spec.Ports {
		number := p.TargetPort.IntVal
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			for _, declared := range c.Ports {
				if declared.Name == p.TargetPort.StrVal && declared.Name != "" {
					number = declared.ContainerPort
				}
			}
		}
		if number == 0 {
			number = p.Port
		}
		name, protocol := p.Name, p.Protocol
		out = append(out, discoveryv1.EndpointPort{Name: &name, Port: &number, Protocol: &protocol, AppProtocol: p.AppProtocol})
	}
	return out
}

// readyEndpoints returns the addresses of a slice that take connections, by the name of the port.
func readyEndpoints(s discoveryv1.EndpointSlice) map[string][]string {
	out := map[string][]string{}
	for _, e := range s.Endpoints {
		for _, p := range s.Ports {
			if *e.Conditions.Ready {
				out[*p.Name] = append(out[*p.Name], net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*p.Port))))
			}
		}
	}
	return out
}

// writeSlice creates or replaces an EndpointSlice that has changed.
func (c *Cluster) writeSlice(ctx context.Context, s discoveryv1.EndpointSlice) error {
	key := s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]
	last, known := c.slices[key]
	if known && reflect.DeepEqual(last, s) {
		return nil
	}
	api := c.cfg.Client.DiscoveryV1().EndpointSlices(s.Namespace)
	_, err := api.Update(ctx, s.DeepCopy(), metav1.UpdateOptions{})
	if kerrors.IsNotFound(err) {
		_, err = api.Create(ctx, s.DeepCopy(), metav1.CreateOptions{})
	}
	if err == nil {
		c.slices[key] = s
	}
	return err
}
