// Package kubernetes keeps in a Kubernetes cluster what the control planes of a fleet share:
// the plan object, policy modules, notes, flow counters and secrets. It is for control planes
// that run as Pods; others share etcd (package etcd) or files (package store).
//
// New returns a Client of the objects of one name in one namespace; its methods return the
// stores. No request is made before the first use. For the name NAME there are:
//
//	Lease NAME                        the root: its spec says who leads, its annotations
//	                                  have the state of the fleet and name the plan
//	ConfigMap NAME-plan-ID-N          part N of a plan; a plan never changes, another one
//	                                  has another ID
//	ConfigMap NAME-state-ID-N         the same for a state that is too large for an annotation
//	ConfigMap NAME-module-SHA256-N-M  part N of M of a policy module
//	ConfigMap NAME-note-HASH          the note of a control plane
//	ConfigMap NAME-counters-HASH-N    flow counters of a control plane, compressed
//	Secret NAME-SECRET                what is created once
//
// Invariants: the stored object changes only by an update of the Lease that names the
// resourceVersion it started from, so of two writers that started from one version at most one
// succeeds, also where an answer is lost and the request is sent again. The Lease names only
// ConfigMaps that exist. Every request has a deadline, every value a size limit. No decision
// compares the clocks of two hosts: age is measured by this host's clock from when it first saw
// a resourceVersion.
package kubernetes

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
)

// Config is the configuration of a Client.
type Config struct {
	// REST says where the API server is and how to log in. Required.
	REST *rest.Config
	// Namespace has the objects. It must exist. Required.
	Namespace string
	// Name begins the names of all objects: a DNS label of at most MaxName bytes. Required.
	// Two fleets of a namespace must not have the same one.
	Name string
}

// MaxName is the longest name of a store, in bytes: the names of objects begin with it, and it
// is the value of a label.
const MaxName = 40

func (c Config) validate() error {
	if c.REST == nil {
		return errors.New("kubernetes: no configuration of a client: REST is required")
	}
	for field, value := range map[string]string{"namespace": c.Namespace, "name": c.Name} {
		if problems := validation.IsDNS1123Label(value); len(problems) > 0 {
			return fmt.Errorf("kubernetes: %s %q: %s", field, value, problems[0])
		}
	}
	if len(c.Name) > MaxName {
		return fmt.Errorf("kubernetes: name %q: must have at most %d bytes", c.Name, MaxName)
	}
	return nil
}

// Client is a connection to the API server. Its methods may be called by any goroutine.
type Client struct {
	namespace, name string
	http            *http.Client
	core            rest.Interface // of ConfigMaps and Secrets
	coordination    rest.Interface // of Leases
	params          runtime.ParameterCodec
}

// New checks the configuration, and reads the files that it names. It makes no request.
func New(c Config) (*Client, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	config := rest.CopyConfig(c.REST)
	// Each request has a deadline, and there are few. By HTTP/1.1, one without an answer in
	// time closes its connection, and the next one opens another; by HTTP/2 all share a
	// connection, which is given up after 45 s of silence.
	config.QPS, config.Timeout = -1, 0
	config.TLSClientConfig.NextProtos = []string{"http/1.1"}
	config.WarningHandlerWithContext = rest.NoWarnings{}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	out := &Client{namespace: c.Namespace, name: c.Name, http: client}
	scheme := runtime.NewScheme()
	for version, add := range map[schema.GroupVersion]func(*runtime.Scheme) error{
		corev1.SchemeGroupVersion: corev1.AddToScheme, coordinationv1.SchemeGroupVersion: coordinationv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("kubernetes: %w", err)
		}
		config.GroupVersion, config.APIPath = &version, "/apis"
		if version.Group == "" {
			config.APIPath = "/api"
		}
		config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
		api, err := rest.RESTClientForConfigAndClient(config, client)
		if err != nil {
			return nil, fmt.Errorf("kubernetes: %w", err)
		}
		if version.Group == "" {
			out.core = api
		} else {
			out.coordination = api
		}
	}
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	out.params = runtime.NewParameterCodec(scheme)
	return out, nil
}

// Close ends the connections that are idle. No request should follow.
func (c *Client) Close() error {
	utilnet.CloseIdleConnectionsFor(c.http.Transport)
	return nil
}

// objectName returns the name of an object of this store.
func (c *Client) objectName(parts ...string) string {
	return c.name + "-" + strings.Join(parts, "-")
}

// Labels of all objects of a store.
const (
	managedByLabel = "app.kubernetes.io/managed-by"
	instanceLabel  = "app.kubernetes.io/instance"
	kindLabel      = "app.kubernetes.io/component" // one of the kinds below
	groupLabel     = "cascade/group"               // which objects of a kind belong together
	managedBy      = "cascade-kube"
)

// The kinds of objects.
const (
	rootKind     = "plan-root"
	planKind     = "plan"
	stateKind    = "state"
	moduleKind   = "module"
	noteKind     = "note"
	countersKind = "counters"
	secretKind   = "secret"
)

// meta returns the metadata of an object of this store. A group of "" is none.
func (c *Client) meta(name, kind, group string) metav1.ObjectMeta {
	labels := c.labels(kind)
	if group != "" {
		labels[groupLabel] = group
	}
	return metav1.ObjectMeta{Namespace: c.namespace, Name: name, Labels: labels}
}

func (c *Client) labels(kind string) map[string]string {
	return map[string]string{managedByLabel: managedBy, instanceLabel: c.name, kindLabel: kind}
}
