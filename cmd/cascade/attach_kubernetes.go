package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

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

func (k *kubernetesFlags) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&k.name, "name", "cascade", "with --to eg, istio or httproute: name of the object")
	f.StringVar(&k.namespace, "namespace", "", "with --to eg, istio or httproute: its namespace (default the Gateway's; istio-ingress for --to istio)")
	f.StringVar(&k.gateway, "gateway", "", "with --to eg or httproute: NAME or NAMESPACE/NAME of the Gateway")
	f.StringVar(&k.section, "section", "", "with --to eg or httproute: name of the Gateway's listener (default http for --to eg, all for --to httproute)")
	f.StringSliceVar(&k.selector, "selector", []string{"istio=ingressgateway"}, "with --to istio: labels of the gateway's pods")
	f.Uint16Var(&k.listenerPort, "listener-port", 8080, "with --to istio: port of the listener inside the gateway's pods")
	f.Int64SliceVar(&k.cuts, "cuts", nil, "with --to httproute: boundaries between the stages in tokens, as \"cascade status\" shows them")
	f.StringVar(&k.service, "service", "cascade", "with --to httproute: the Services are SERVICE-s0, SERVICE-s1, …, one for each stage")
	f.Uint16Var(&k.servicePort, "service-port", 8000, "with --to httproute: their port")
	f.StringSliceVar(&k.hosts, "host", nil, "with --to httproute: host names of the route")
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
filter cascade.length.v1, the length estimator arrives by ECDS (control.estimator: wasm,
control.module); it reads bodies of up to 16 MiB, the listener's new limit.`
	routeComment = `Routes requests to the stages of a plan by x-cascade-tokens, which a filter before this route must
set, and overwrite or remove where clients send it. The last rule also gets the requests without
it. Change a boundary by applying the output of "cascade attach" again.`
)

// attachKubernetes prints a Kubernetes object.
func (s *settings) attachKubernetes(cmd *cobra.Command, fleet wiring.Fleet, a *attachFlags) error {
	k := a.kubernetes
	gatewayNamespace, gateway := "", k.gateway
	if before, after, ok := strings.Cut(k.gateway, "/"); ok {
		gatewayNamespace, gateway = before, after
	}
	if a.to != "istio" && gateway == "" {
		return usageErrorf(cmd, "name the Gateway with --gateway")
	}
	if a.to == "httproute" {
		c := attach.RouteConfig{Name: k.name, Namespace: k.namespace, Gateway: gateway, Section: k.section, Hosts: k.hosts, Service: k.service, Port: k.servicePort}
		if c.Namespace == "" {
			c.Namespace = gatewayNamespace
		} else if c.Namespace != gatewayNamespace {
			c.GatewayNamespace = gatewayNamespace
		}
		for _, cut := range k.cuts {
			c.Cuts = append(c.Cuts, policies.Tokens(cut))
		}
		o, err := attach.HTTPRoute(c)
		return s.printObject(o, err, routeComment)
	}
	c, err := a.config(fleet)
	if err != nil {
		return err
	}
	if a.to == "eg" {
		p := attach.PatchConfig{Config: c, Name: k.name, Namespace: k.namespace, Gateway: gateway, Section: k.section}
		switch {
		case p.Namespace == "" && gatewayNamespace == "":
			p.Namespace = "default"
		case p.Namespace == "":
			p.Namespace = gatewayNamespace
		case gatewayNamespace != "" && gatewayNamespace != p.Namespace:
			return usageErrorf(cmd, "--namespace %s: an EnvoyPatchPolicy must be in the namespace of its Gateway, %s", k.namespace, gatewayNamespace)
		}
		if p.Section == "" {
			p.Section = "http"
		}
		o, err := attach.EnvoyPatchPolicy(p)
		return s.printObject(o, err, egComment)
	}
	f := attach.FilterConfig{Config: c, Name: k.name, Namespace: k.namespace, Labels: make(map[string]string), Port: k.listenerPort}
	if f.Namespace == "" {
		f.Namespace = "istio-ingress"
	}
	for _, label := range k.selector {
		key, value, ok := strings.Cut(label, "=")
		if !ok {
			return usageErrorf(cmd, "--selector %q: must be LABEL=VALUE", label)
		}
		f.Labels[key] = value
	}
	o, err := attach.EnvoyFilter(f)
	return s.printObject(o, err, istioComment)
}

// printObject prints an object as YAML with a comment, or as JSON.
func (s *settings) printObject(o *attach.Object, err error, comment string) error {
	if err != nil {
		return err
	}
	if s.json {
		return s.print(o)
	}
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	body, err := yaml.JSONToYAML(text)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.stdout, "# %s\n%s", strings.ReplaceAll(comment, "\n", "\n# "), body)
	return err
}
