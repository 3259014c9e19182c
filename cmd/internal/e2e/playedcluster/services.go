package playedcluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// serve writes the EndpointSlices of the Services, and makes their addresses and names work on the node and in Pods.
func (c *Cluster) serve(ctx context.Context, all []corev1.Service, pods []corev1.Pod) error {
	var names strings.Builder
	alive := map[string]bool{}
	var errs error
	for i := range all {
		s := &all[i]
		api := s.Namespace == metav1.NamespaceDefault && s.Name == "kubernetes"
		if s.Namespace != c.cfg.Namespace && !api {
			continue
		}
		alive[s.Name] = true
		endpoints := map[string][]string{} // addresses that take connections, by the name of the port
		if api {
			endpoints[s.Spec.Ports[0].Name] = []string{c.cfg.APIAddress}
		} else {
			slice := endpointSlice(s, pods)
			errs = errors.Join(errs, c.writeSlice(ctx, slice))
			endpoints = readyEndpoints(slice)
		}
		if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone {
			continue
		}
		fmt.Fprintf(&names, "%[1]s %[2]s %[2]s.%[3]s %[2]s.%[3]s.svc %[2]s.%[3]s.svc.cluster.local\n", s.Spec.ClusterIP, s.Name, s.Namespace)
		p := c.services[s.Name]
		if p == nil {
			p = &service{address: s.Spec.ClusterIP, network: c.network, ports: map[string]*servicePort{}}
			if err := c.network.addService(p.address); err != nil {
				return err
			}
			c.services[s.Name] = p
		}
		errs = errors.Join(errs, p.update(s.Spec.Ports, endpoints))
	}
	for name, p := range c.services {
		if !alive[name] {
			p.close()
			delete(c.services, name)
			errs = errors.Join(errs, c.network.removeService(p.address))
		}
	}
	for name := range c.slices {
		if !alive[strings.TrimSuffix(name, sliceSuffix)] {
			delete(c.slices, name)
			errs = errors.Join(errs, c.cfg.Client.DiscoveryV1().EndpointSlices(c.cfg.Namespace).Delete(ctx, name, metav1.DeleteOptions{}))
		}
	}
	return errors.Join(errs, c.writeHosts("127.0.0.1 localhost\n"+names.String()))
}

// writeHosts replaces /etc/hosts, which a resolver may read at any time.
func (c *Cluster) writeHosts(text string) error {
	if text == c.hosts {
		return nil
	}
	err := os.WriteFile("/etc/hosts.new", []byte(text), 0o644)
	if err == nil {
		err = os.Rename("/etc/hosts.new", "/etc/hosts")
	}
	if err == nil {
		c.hosts = text
	}
	return err
}

// sliceSuffix is the end of an EndpointSlice's name, after that of its Service.
const sliceSuffix = "-played"

// endpointSlice returns the EndpointSlice of a Service.
func endpointSlice(s *corev1.Service, pods []corev1.Pod) discoveryv1.EndpointSlice {
	out := discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: s.Name + sliceSuffix, Namespace: s.Namespace, Labels: map[string]string{discoveryv1.LabelServiceName: s.Name, discoveryv1.LabelManagedBy: "playedcluster"}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	selector := labels.SelectorFromSet(s.Spec.Selector)
	for i := range pods {
		p := &pods[i]
		if len(s.Spec.Selector) == 0 || !selector.Matches(labels.Set(p.Labels)) || p.Status.PodIP == "" {
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
	last, known := c.slices[s.Name]
	if known && reflect.DeepEqual(last, s) {
		return nil
	}
	api := c.cfg.Client.DiscoveryV1().EndpointSlices(s.Namespace)
	_, err := api.Update(ctx, s.DeepCopy(), metav1.UpdateOptions{})
	if kerrors.IsNotFound(err) {
		_, err = api.Create(ctx, s.DeepCopy(), metav1.CreateOptions{})
	}
	if err == nil {
		c.slices[s.Name] = s
	}
	return err
}

// service is the address of a Service: connections to it lead to one of its endpoints.
type service struct {
	address string
	network *network
	ports   map[string]*servicePort // by name; they belong to the loop of Run
}

type servicePort struct {
	listener net.Listener
	done     sync.WaitGroup

	mu        sync.Mutex
	endpoints []string // guarded by mu
}

// update makes the ports of a service lead to endpoints.
func (s *service) update(ports []corev1.ServicePort, endpoints map[string][]string) error {
	for _, p := range ports {
		at := s.ports[p.Name]
		if at == nil {
			l, err := net.Listen("tcp", net.JoinHostPort(s.address, strconv.Itoa(int(p.Port))))
			if err != nil {
				return err
			}
			at = &servicePort{listener: l}
			at.done.Go(at.accept)
			s.ports[p.Name] = at
		}
		at.mu.Lock()
		at.endpoints = endpoints[p.Name]
		at.mu.Unlock()
	}
	return nil
}

// close closes the ports. Connections go on until one of their ends closes them.
func (s *service) close() {
	for _, p := range slices.Collect(maps.Values(s.ports)) {
		p.listener.Close()
		p.done.Wait()
	}
}

// accept serves connections until the listener is closed.
func (p *servicePort) accept() {
	for {
		from, err := p.listener.Accept()
		if err != nil {
			return
		}
		go p.forward(from)
	}
}

// forward connects a client with an endpoint. Without one, or if it refuses, the connection is closed.
func (p *servicePort) forward(from net.Conn) {
	defer from.Close()
	p.mu.Lock()
	endpoints := p.endpoints
	p.mu.Unlock()
	if len(endpoints) == 0 {
		return
	}
	to, err := net.Dial("tcp", endpoints[rand.IntN(len(endpoints))])
	if err != nil {
		return
	}
	defer to.Close()
	var both sync.WaitGroup
	for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
		both.Go(func() {
			io.Copy(pair[1], pair[0])
			pair[1].(*net.TCPConn).CloseWrite()
		})
	}
	both.Wait()
}
