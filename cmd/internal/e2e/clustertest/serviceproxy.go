package clustertest

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ServiceAddresses gives addresses to this host.
type ServiceAddresses interface {
	AddService(netip.Addr) error
	RemoveService(netip.Addr) error
}

// ProxyConfig is the configuration of a Proxy. Both fields are required.
type ProxyConfig struct {
	Network ServiceAddresses
	// API is host:port of the API server, to which the Service "kubernetes" leads.
	API string
}

func (c *ProxyConfig) validate() error {
	if c.Network == nil || c.API == "" {
		return errors.New("proxy: Network and API are required")
	}
	return nil
}

// Proxy serves Services. Its methods may be called from one goroutine at a time.
type Proxy struct {
	cfg      ProxyConfig
	services map[string]*service // by namespace and name
	hosts    string              // text of /etc/hosts, as written last
}

// NewProxy returns a Proxy, which serves nothing before Update.
func NewProxy(c ProxyConfig) (*Proxy, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &Proxy{cfg: c, services: map[string]*service{}}, nil
}

// Update serves all Services, and no others. What fails is tried again by the next Update.
func (p *Proxy) Update(all []Service) error {
	var names strings.Builder
	names.WriteString("127.0.0.1 localhost\n")
	present := map[string]bool{}
	var errs error
	for _, s := range all {
		if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone {
			continue
		}
		key := s.Namespace + "/" + s.Name
		present[key] = true
		fmt.Fprintf(&names, "%[1]s %[2]s %[2]s.%[3]s %[2]s.%[3]s.svc %[2]s.%[3]s.svc.cluster.local\n", s.Spec.ClusterIP, s.Name, s.Namespace)
		endpoints := s.Endpoints
		if key == metav1.NamespaceDefault+"/kubernetes" {
			endpoints = map[string][]string{s.Spec.Ports[0].Name: {p.cfg.API}}
		}
		if err := p.serve(key, s.Spec.ClusterIP, s.Spec.Ports, endpoints); err != nil {
			errs = errors.Join(errs, fmt.Errorf("serve Service %s: %w", key, err))
		}
	}
	for key := range p.services {
		if !present[key] {
			errs = errors.Join(errs, p.remove(key))
		}
	}
	return errors.Join(errs, p.writeHosts(names.String()))
}

// Close stops serving. Connections go on until one of their ends closes them.
func (p *Proxy) Close() error {
	var errs error
	for _, key := range slices.Collect(maps.Keys(p.services)) {
		errs = errors.Join(errs, p.remove(key))
	}
	return errs
}

// serve makes the ports of a Service lead to endpoints.
func (p *Proxy) serve(key, address string, ports []corev1.ServicePort, endpoints map[string][]string) error {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return err
	}
	s := p.services[key]
	if s != nil && s.address != ip { // another Service has its name
		if err := p.remove(key); err != nil {
			return err
		}
		s = nil
	}
	if s == nil {
		if err := p.cfg.Network.AddService(ip); err != nil {
			return err
		}
		s = &service{address: ip, ports: map[string]*servicePort{}}
		p.services[key] = s
	}
	return s.update(ports, endpoints)
}

// remove stops serving a Service. It is still known if its address cannot be removed.
func (p *Proxy) remove(key string) error {
	s := p.services[key]
	s.keep(nil)
	if err := p.cfg.Network.RemoveService(s.address); err != nil {
		return fmt.Errorf("remove Service %s: %w", key, err)
	}
	delete(p.services, key)
	return nil
}

// writeHosts replaces /etc/hosts, which a resolver may read at any time.
func (p *Proxy) writeHosts(text string) error {
	if text == p.hosts {
		return nil
	}
	err := os.WriteFile("/etc/hosts.new", []byte(text), 0o644)
	if err == nil {
		err = os.Rename("/etc/hosts.new", "/etc/hosts")
	}
	if err == nil {
		p.hosts = text
	}
	return err
}

// service is the address of a Service: connections to it lead to one of its endpoints.
type service struct {
	address netip.Addr
	ports   map[string]*servicePort // by name
}

type servicePort struct {
	number   int32
	listener net.Listener
	done     sync.WaitGroup

	mu        sync.Mutex
	endpoints []string // guarded by mu
}

// update makes the ports lead to endpoints, and no others.
func (s *service) update(ports []corev1.ServicePort, endpoints map[string][]string) error {
	s.keep(ports)
	for _, p := range ports {
		at := s.ports[p.Name]
		if at == nil {
			l, err := net.Listen("tcp", net.JoinHostPort(s.address.String(), strconv.Itoa(int(p.Port))))
			if err != nil {
				return err
			}
			at = &servicePort{number: p.Port, listener: l}
			at.done.Go(at.accept)
			s.ports[p.Name] = at
		}
		at.mu.Lock()
		at.endpoints = endpoints[p.Name]
		at.mu.Unlock()
	}
	return nil
}

// keep closes the listeners of all ports but these. A port is another one when its number has changed.
func (s *service) keep(ports []corev1.ServicePort) {
	for name, p := range s.ports {
		if !slices.ContainsFunc(ports, func(other corev1.ServicePort) bool { return other.Name == name && other.Port == p.number }) {
			p.listener.Close()
			p.done.Wait()
			delete(s.ports, name)
		}
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

// dialTimeout is how long an endpoint may take to accept a connection.
const dialTimeout = 5 * time.Second

// forward connects a client with an endpoint. Without one, or if it refuses, the connection is closed.
func (p *servicePort) forward(from net.Conn) {
	defer from.Close()
	p.mu.Lock()
	endpoints := p.endpoints
	p.mu.Unlock()
	if len(endpoints) == 0 {
		return
	}
	to, err := net.DialTimeout("tcp", endpoints[rand.IntN(len(endpoints))], dialTimeout)
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
