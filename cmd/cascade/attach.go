package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/resources/attach"
)

// attachFlags are the flags of "cascade attach".
type attachFlags struct {
	file             fleetFile
	to               string
	control          []string
	nodeID           string
	internalListener bool
	into             string // for gRPC clients only
	kubernetes       kubernetesFlags
	attach.Config
}

// newAttach is "cascade attach": the configuration for an Envoy or client of
// another owner.
func newAttach(s *settings) *cobra.Command {
	a := new(attachFlags)
	c := &cobra.Command{
		Use:   "attach --to envoy|eg|istio|httproute|grpc",
		Short: "Print the configuration that makes your own Envoy, gateway, mesh or gRPC client use Cascade's routes",
		Long: `Attach is for an Envoy or a gRPC client that another control plane configures: a mesh,
a gateway, or your own files. It prints what to add to its configuration, once.
Everything after that (routes, stages, endpoints) comes from Cascade over xDS, and
nothing else in that configuration changes.

--to envoy prints three objects: a cluster for the control plane and, for the HTTP
connection manager of one listener, a subscription to Cascade's route table and a
filter that fetches the clusters which the table names. Cascade then routes the whole
listener. It answers 503 with retry-after until Cascade has answered once since Envoy
started; the rest of Envoy is ready 2 s after the start. Envoy keeps the last routes
when Cascade is unreachable.

--to envoy --internal-listener leaves listeners and route tables alone. It prints an internal
listener, a cluster that leads to it, and a route to that cluster for a virtual host
of your own; Envoy's bootstrap needs one extension. With --fallback CLUSTER, a request
that Cascade cannot route (it has not answered since Envoy started, or has no replica)
goes to that cluster of yours instead, if its body has at most 16 MiB. No replica has
received such a request, so none is served twice.

--to eg prints the same for a listener of an Envoy Gateway, as an EnvoyPatchPolicy (which
enableEnvoyPatchPolicy permits), and --to istio for one of an Istio ingress gateway, as an
EnvoyFilter. Give the address of the control plane in the cluster with --control. --to eg needs
Envoy Gateway 1.2 or later; listeners with TLS on one port are handed over together.

--to httproute needs no privilege and no Envoy: it prints an HTTPRoute for any implementation
of the Gateway API that matches headers by regular expressions. Boundaries (--cuts) are part of
it, and change when you apply it again; each stage is a Service of yours. A filter before the
route must set x-cascade-tokens.

--to grpc prints a gRPC client's xDS bootstrap in which Cascade is one authority:
the client dials xds://cascade/MODEL and states lengths in x-cascade-tokens. With
--into FILE, the client's own bootstrap is printed with that authority added.

Requests are routed by the size of their bodies. For exact lengths, a filter of your
own may set x-cascade-tokens and x-gateway-model-name and clear the route cache
(without --internal-listener); these headers are removed from clients' requests first.`,
		Example: `  cascade attach --to envoy -c fleet.yaml > cascade.yaml
  cascade attach --to envoy --control 10.0.0.5:18000 --control 10.0.0.6:18000 --model llama-3.1-8b
  cascade attach --to envoy --internal-listener --fallback vllm -c fleet.yaml
  cascade attach --to eg --gateway default/eg --section http --control cascade.cascade-system:18000
  cascade attach --to istio --namespace istio-ingress --listener-port 8080 --control cascade.cascade-system:18000
  cascade attach --to httproute --gateway default/eg --cuts 4096,16384 --service llama
  cascade attach --to grpc --into bootstrap.json --control cascade.internal:18000`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return s.attach(cmd, a) },
	}
	a.file.flag(c, "fleet file; without one: a control plane without TLS at 127.0.0.1:18000")
	f := c.Flags()
	f.StringVar(&a.to, "to", "", "what to attach: envoy, eg, istio, httproute or grpc")
	f.StringArrayVar(&a.control, "control", nil, "host:port of the control plane, where it is not control.listen of the file; may be repeated")
	f.StringVar(&a.nodeID, "node-id", wiring.DefaultNodeID("grpc"), "name of the client: for its certificate, and in a new gRPC bootstrap")
	f.StringVar(&a.Model, "model", "", "the one model that is served, whatever host name a request has; empty: all, as the request says")
	f.BoolVar(&a.EstimatorFilter, "estimator-filter", false, "add the HTTP filter whose configuration, the length estimator inside Envoy, comes by ECDS")
	f.BoolVar(&a.LoadReports, "load-reports", false, "have Envoy report its load to the control plane (part of its bootstrap)")
	f.BoolVar(&a.internalListener, "internal-listener", false, "print an internal listener for one virtual host or route of yours, instead of handing over a listener")
	f.StringVar(&a.Listener, "listener", resources.ListenerName, "with --internal-listener: name of the internal listener")
	f.StringVar(&a.Fallback, "fallback", "", "with --internal-listener: cluster of yours that serves requests which Cascade cannot route")
	f.DurationVar(&a.FetchTimeout, "fetch-timeout", 0, "how long Envoy waits for Cascade's answers when it starts (default 2s)")
	f.StringVar(&a.into, "into", "", "with --to grpc: bootstrap file to add Cascade to")
	a.kubernetes.flags(c)
	f.Lookup("node-id").DefValue = "grpc@<host name>"
	completeFrom(c, "to", attachTargets)
	return c
}

// attach prints the configuration that the flags select.
func (s *settings) attach(cmd *cobra.Command, a *attachFlags) error {
	fleet := wiring.Fleet{}
	fleet.Fleet.Control.Listen = "127.0.0.1:18000"
	if a.file.path != "" {
		var err error
		if fleet, err = a.file.load(cmd); err != nil {
			return err
		}
	}
	if !slices.Contains(attachTargets, a.to) {
		return usageErrorf(cmd, "--to %q: must be %s or %s", a.to, strings.Join(attachTargets[:len(attachTargets)-1], ", "), attachTargets[len(attachTargets)-1])
	}
	for flag, targets := range attachFlagTargets {
		if cmd.Flags().Changed(flag) && !slices.Contains(targets, a.to) {
			return usageErrorf(cmd, "--%s is for --to %s", flag, strings.Join(targets, " and "))
		}
	}
	switch a.to {
	case "grpc":
		return s.attachGRPC(fleet, a)
	case "envoy":
		if !a.internalListener && (cmd.Flags().Changed("fallback") || cmd.Flags().Changed("listener")) {
			return usageErrorf(cmd, "--fallback and --listener need --internal-listener")
		}
		return s.attachEnvoy(fleet, a)
	}
	return s.attachKubernetes(cmd, fleet, a)
}

// attachTargets are the values of --to.
var attachTargets = []string{"envoy", "eg", "istio", "httproute", "grpc"}

// attachFlagTargets says for which values of --to a flag is; those that are missing are for all.
var attachFlagTargets = map[string][]string{
	"into":              {"grpc"},
	"internal-listener": {"envoy"}, "fallback": {"envoy"}, "listener": {"envoy"}, "load-reports": {"envoy"},
	"estimator-filter": {"envoy", "eg", "istio"}, "model": {"envoy", "eg", "istio"}, "fetch-timeout": {"envoy", "eg", "istio"},
	"control": {"envoy", "eg", "istio", "grpc"},
	"gateway": {"eg", "httproute"}, "section": {"eg", "httproute"},
	"namespace": {"eg", "istio", "httproute"}, "name": {"eg", "istio", "httproute"},
	"selector": {"istio"}, "listener-port": {"istio"},
	"cuts": {"httproute"}, "service": {"httproute"}, "service-port": {"httproute"}, "host": {"httproute"},
}

func (s *settings) attachGRPC(fleet wiring.Fleet, a *attachFlags) error {
	c := attach.GRPCConfig{Control: a.control, NodeID: a.nodeID}
	if len(c.Control) == 0 {
		c.Control = []string{fleet.Fleet.Control.Listen}
	}
	var err error
	if c.TLS, err = fleet.AttachFiles(a.nodeID); err != nil {
		return err
	}
	if a.into != "" {
		if c.Bootstrap, err = os.ReadFile(a.into); err != nil {
			return err
		}
	}
	out, err := attach.GRPCBootstrap(c)
	if err != nil {
		return err
	}
	_, err = s.stdout.Write(out)
	return err
}

func (s *settings) attachEnvoy(fleet wiring.Fleet, a *attachFlags) error {
	c, err := a.config(fleet)
	if err != nil {
		return err
	}
	render := attach.WholeListener
	if a.internalListener {
		render = attach.InternalListener
	}
	h, err := render(c)
	if err != nil {
		return err
	}
	pieces, err := configParts(h)
	if err != nil {
		return err
	}
	if s.json {
		out := make(map[string]json.RawMessage, len(pieces))
		for _, p := range pieces {
			out[p.key] = p.value
		}
		return s.print(out)
	}
	var text bytes.Buffer
	for _, p := range pieces {
		body, err := yaml.JSONToYAML(p.value)
		if err != nil {
			return fmt.Errorf("%s: %w", p.key, err)
		}
		if text.Len() > 0 {
			text.WriteByte('\n')
		}
		fmt.Fprintf(&text, "# %s\n%s:\n", strings.ReplaceAll(p.where, "\n", "\n# "), p.key)
		for line := range strings.Lines(string(body)) {
			text.WriteString("  " + line)
		}
	}
	_, err = s.stdout.Write(text.Bytes())
	return err
}

// config returns the configuration of the flags and of the fleet file.
func (a *attachFlags) config(fleet wiring.Fleet) (attach.Config, error) {
	c, err := fleet.Attach(a.nodeID, a.control)
	c.Model, c.EstimatorFilter, c.LoadReports = a.Model, a.EstimatorFilter, a.LoadReports
	c.Listener, c.Fallback, c.FetchTimeout = a.Listener, a.Fallback, a.FetchTimeout
	return c, err
}

// configPart is one part of an Envoy's configuration, and where it belongs.
type configPart struct {
	key, where string
	value      json.RawMessage
}

// configParts returns the parts to add, in the order in which to paste them.
func configParts(h *attach.EnvoyConfig) ([]configPart, error) {
	clusters, err := jsonList(h.Clusters)
	if err != nil {
		return nil, err
	}
	pieces := []configPart{{"clusters", "Add to static_resources.clusters, or to what your CDS serves.", clusters}}
	for _, p := range [...]struct {
		key, where string
		m          proto.Message
		there      bool
	}{
		{"http_connection_manager", "Merge into the HttpConnectionManager of the listener that Cascade is to route:\nrds takes the place of its route table, and the filters go before the router.", h.Manager, h.Manager != nil},
		{"listener", "Add to static_resources.listeners, or to what your LDS serves.", h.Listener, h.Listener != nil},
		{"route", "Add to the routes of your virtual host; the match is yours to narrow.", h.Route, h.Route != nil},
		{"bootstrap", "Merge into Envoy's bootstrap; this takes a restart.", h.Bootstrap, h.Bootstrap != nil},
	} {
		if !p.there {
			continue
		}
		text, err := resources.FormatJSON(p.m)
		if err != nil {
			return nil, err
		}
		pieces = append(pieces, configPart{p.key, p.where, text})
	}
	return pieces, nil
}

func jsonList[M proto.Message](list []M) (json.RawMessage, error) {
	var out []json.RawMessage
	for _, m := range list {
		text, err := resources.FormatJSON(m)
		if err != nil {
			return nil, err
		}
		out = append(out, text)
	}
	return json.Marshal(out)
}
