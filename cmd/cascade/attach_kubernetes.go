package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources/attach"
)

// kubernetesFlags are the flags of "cascade attach" for Kubernetes objects.
type kubernetesFlags struct {
	name, namespace, gateway, section string
	selector                          []string
	listenerPort                      uint16
	cuts                              []int64
	service                           string
	servicePort                       uint16
	hosts                             []string
}

func (k *kubernetesFlags) flags(c *cobra.Command, target string) {
	f := c.Flags()
	switch target {
	case "eg":
		k.objectFlags(c, "the Gateway's")
		k.gatewayFlags(c, "http")
	case "istio":
		k.objectFlags(c, "istio-ingress")
		f.StringSliceVar(&k.selector, "selector", []string{"istio=ingressgateway"}, "labels of the gateway's pods")
		f.Uint16Var(&k.listenerPort, "listener-port", 8080, "port of the listener inside the gateway's pods")
	case "httproute":
		k.objectFlags(c, "the Gateway's")
		k.gatewayFlags(c, "all")
		f.Int64SliceVar(&k.cuts, "cuts", nil, "boundaries between the stages in tokens, as \"cascade status\" shows them")
		f.StringVar(&k.service, "service", "cascade", "the Services are SERVICE-s0, SERVICE-s1, …, one for each stage")
		f.Uint16Var(&k.servicePort, "service-port", 8000, "their port")
		f.StringSliceVar(&k.hosts, "host", nil, "host names of the route")
	}
}

// objectFlags adds the flags that name the object.
func (k *kubernetesFlags) objectFlags(c *cobra.Command, namespace string) {
	c.Flags().StringVar(&k.name, "name", "cascade", "name of the object")
	c.Flags().StringVar(&k.namespace, "namespace", "", "its namespace (default "+namespace+")")
}

// gatewayFlags adds the flags that name a listener of a Gateway.
func (k *kubernetesFlags) gatewayFlags(c *cobra.Command, section string) {
	c.Flags().StringVar(&k.gateway, "gateway", "", "NAME or NAMESPACE/NAME of the Gateway")
	c.Flags().StringVar(&k.section, "section", "", "name of the Gateway's listener (default "+section+")")
}

// splitGateway returns the namespace, if it is given, and the name of the Gateway.
func (k *kubernetesFlags) splitGateway(cmd *cobra.Command) (namespace, name string, err error) {
	namespace, name, ok := strings.Cut(k.gateway, "/")
	if !ok {
		namespace, name = "", k.gateway
	}
	if name == "" {
		return "", "", cli.Usagef(cmd, "name the Gateway with --gateway")
	}
	return namespace, name, nil
}

// The comments over the objects.
const (
	egComment = `Hands the routes of one HTTP listener of an Envoy Gateway over to Cascade. The gateway keeps the
listener and its other filters; boundaries and members then change without it.
EnvoyGateway must have extensionApis.enableEnvoyPatchPolicy: true. Give requests for Cascade a
listener of their own: other HTTPRoutes of this one have no effect. It needs Envoy Gateway 1.2 or
later. Listeners with TLS on one port are handed over together.`
	istioComment = `Hands the routes of one listener of an Istio gateway over to Cascade. Istio keeps the listener,
its certificates and its other filters; boundaries and members then change without Istio.
Change the labels, the listener's port and the address of the control plane to yours. With the
filter cascade.length.v1, the length estimator arrives by ECDS (a module as
control.estimator); it reads bodies of up to proxy.body_limit of the fleet file (16 MiB).`
	routeComment = `Routes requests to the stages of a plan by x-cascade-tokens, which a filter before this route must
set, and overwrite or remove where clients send it. The last rule also gets the requests without
it. Change a boundary by applying the output of "cascade attach" again.`
)

// attachRoute prints an HTTPRoute.
func (s *settings) attachRoute(cmd *cobra.Command, _ wiring.Fleet, a *attachFlags) error {
	k := &a.kubernetes
	namespace, gateway, err := k.splitGateway(cmd)
	if err != nil {
		return err
	}
	c := attach.RouteConfig{Name: k.name, Namespace: k.namespace, Gateway: gateway, Section: k.section, Hosts: k.hosts, Service: k.service, Port: k.servicePort}
	if c.Namespace == "" {
		c.Namespace = namespace
	} else if c.Namespace != namespace {
		c.GatewayNamespace = namespace
	}
	for _, cut := range k.cuts {
		c.Cuts = append(c.Cuts, policies.Tokens(cut))
	}
	o, err := attach.HTTPRoute(c)
	return s.printObject(o, err, routeComment)
}

// attachGateway prints an EnvoyPatchPolicy.
func (s *settings) attachGateway(cmd *cobra.Command, fleet wiring.Fleet, a *attachFlags) error {
	k := &a.kubernetes
	namespace, gateway, err := k.splitGateway(cmd)
	if err != nil {
		return err
	}
	if namespace != "" && k.namespace != "" && namespace != k.namespace {
		return cli.Usagef(cmd, "--namespace %s: an EnvoyPatchPolicy must be in the namespace of its Gateway, %s", k.namespace, namespace)
	}
	c, err := s.clusterConfig(fleet, a)
	if err != nil {
		return err
	}
	o, err := attach.EnvoyPatchPolicy(attach.PatchConfig{
		Config: c, Name: k.name, Namespace: cmp.Or(k.namespace, namespace, "default"), Gateway: gateway, Section: cmp.Or(k.section, "http"),
	})
	return s.printObject(o, err, egComment)
}

// attachIstio prints an EnvoyFilter.
func (s *settings) attachIstio(cmd *cobra.Command, fleet wiring.Fleet, a *attachFlags) error {
	k := &a.kubernetes
	c, err := s.clusterConfig(fleet, a)
	if err != nil {
		return err
	}
	f := attach.FilterConfig{Config: c, Name: k.name, Namespace: cmp.Or(k.namespace, "istio-ingress"), Labels: make(map[string]string), Port: k.listenerPort}
	for _, label := range k.selector {
		key, value, ok := strings.Cut(label, "=")
		if !ok {
			return cli.Usagef(cmd, "--selector %q: must be LABEL=VALUE", label)
		}
		f.Labels[key] = value
	}
	o, err := attach.EnvoyFilter(f)
	return s.printObject(o, err, istioComment)
}

// clusterConfig returns the configuration for a gateway in a cluster, which cannot reach a control plane on loopback.
func (s *settings) clusterConfig(fleet wiring.Fleet, a *attachFlags) (attach.Config, error) {
	c, err := a.config(fleet)
	for _, address := range c.Control {
		if a, err := netip.ParseAddrPort(address); err == nil && a.Addr().IsLoopback() {
			s.Announce(slog.LevelWarn, "%s: a gateway in a cluster does not reach it: name the control plane's address there with --control", address)
		}
	}
	return c, err
}

// printObject prints an object as YAML with a comment, or as JSON.
func (s *settings) printObject(o *attach.Object, err error, comment string) error {
	if err != nil {
		return err
	}
	if s.JSON {
		return s.Print(o)
	}
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	body, err := yaml.JSONToYAML(text)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.Stdout, "# %s\n%s", strings.ReplaceAll(comment, "\n", "\n# "), body)
	return err
}
