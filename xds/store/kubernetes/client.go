// Package kubernetes is a store.Backend in a Kubernetes cluster, for control planes that run as
// Pods.
//
// New returns a Client of the objects of one name in one namespace, which makes no request before
// the first use. For the name NAME there are:
//
//	Lease NAME                  its spec says who leads, an annotation is the root
//	ConfigMap NAME-FOLDER-BLOB  a blob
//
// Invariants: the root changes only by a patch of the Lease that names the resourceVersion it
// started from, so of two writers that started from one version at most one succeeds, also where
// an answer is lost and the request is sent again.
package kubernetes

import (
	"errors"
	"fmt"
	"net/http"

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
	core            rest.Interface // of ConfigMaps
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

// Labels of all objects of a store.
const (
	managedByLabel = "app.kubernetes.io/managed-by"
	instanceLabel  = "app.kubernetes.io/instance"
	kindLabel      = "app.kubernetes.io/component" // the folder of a blob, or rootKind
	managedBy      = "cascade-kube"
	rootKind       = "plan-root"
)

func (c *Client) labels(kind string) map[string]string {
	return map[string]string{managedByLabel: managedBy, instanceLabel: c.name, kindLabel: kind}
}
