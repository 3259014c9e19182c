package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/resources/attach"
)

// attachFlags are the flags of "cascade attach" and of its targets.
type attachFlags struct {
	file             fleetFile
	control          []string
	nodeID           string
	internalListener bool
	into             string // for gRPC clients only
	kubernetes       kubernetesFlags
	attach.Config
}

// attachTarget is a subcommand of "cascade attach".
type attachTarget struct {
	name, short, long, example string
	print                      func(*settings, *cobra.Command, wiring.Fleet, *attachFlags) error
}

// attachTargets are the subcommands, in the order of the help.
var attachTargets = []attachTarget{
	{
		name: "envoy", short: "Print additions to the configuration of an Envoy of yours",
		long: `Envoy prints three objects: a cluster for the control plane and, for the HTTP
connection manager of one listener, a subscription to Cascade's route table and a
filter that fetches the clusters which the table names. Cascade then routes the whole
listener. It answers 503 with retry-after until Cascade has answered once since Envoy
started; the rest of Envoy is ready 2 s after the start. Envoy keeps the last routes
when Cascade is unreachable.

With --internal-listener it leaves listeners and route tables alone. It prints an internal
listener, a cluster that leads to it, and a route to that cluster for a virtual host
of your own; Envoy's bootstrap needs one extension. With --fallback CLUSTER, a request
that Cascade cannot route (it has not answered since Envoy started, or has no replica)
goes to that cluster of yours instead, if its body is within proxy.body_limit. No replica has
received such a request, so none is served twice.`,
		example: `  cascade attach envoy -c fleet.yaml > cascade.yaml
  cascade attach envoy --control 10.0.0.5:18000 --control 10.0.0.6:18000 --model llama-3.1-8b
  cascade attach envoy --internal-listener --fallback vllm -c fleet.yaml`,
		print: (*settings).attachEnvoy,
	},
	{
		name: "eg", short: "Print an EnvoyPatchPolicy for a listener of an Envoy Gateway",
		long: `Eg prints what "cascade attach envoy" prints, for a listener of an Envoy Gateway, as an
EnvoyPatchPolicy, which enableEnvoyPatchPolicy permits. Give the address of the control plane in
the cluster with --control. It needs Envoy Gateway 1.2 or later; listeners with TLS on one port
are handed over together.`,
		example: `  cascade attach eg --gateway default/eg --section http --control cascade.cascade-system:18000`,
		print:   (*settings).attachGateway,
	},
	{
		name: "istio", short: "Print an EnvoyFilter for a listener of an Istio ingress gateway",
		long: `Istio prints what "cascade attach envoy" prints, for a listener of an Istio ingress gateway, as
an EnvoyFilter. Give the address of the control plane in the cluster with --control.`,
		example: `  cascade attach istio --namespace istio-ingress --listener-port 8080 --control cascade.cascade-system:18000`,
		print:   (*settings).attachIstio,
	},
	{
		name: "httproute", short: "Print an HTTPRoute for any implementation of the Gateway API",
		long: `Httproute needs no privilege and no Envoy: it prints an HTTPRoute for any implementation
of the Gateway API that matches headers by regular expressions. Boundaries (--cuts) are part of
it, and change when you apply it again; each stage is a Service of yours. A filter before the
route must set x-cascade-tokens.`,
		example: `  cascade attach httproute --gateway default/eg --cuts 4096,16384 --service llama`,
		print:   (*settings).attachRoute,
	},
	{
		name: "grpc", short: "Print the xDS bootstrap of a gRPC client",
		long: `Grpc prints a gRPC client's xDS bootstrap in which Cascade is one authority:
the client dials xds://cascade/MODEL and states lengths in x-cascade-tokens. With
--into FILE, the client's own bootstrap is printed with that authority added.`,
		example: `  cascade attach grpc --into bootstrap.json --control cascade.internal:18000`,
		print:   (*settings).attachGRPC,
	},
}

// newAttach is "cascade attach": the configuration for an Envoy or client of
// another owner.
func newAttach(s *settings) *cobra.Command {
	c := cli.Group(&cobra.Command{
		Use:   "attach",
		Short: "Print the configuration that makes your own Envoy, gateway, mesh or gRPC client use Cascade's routes",
		Long: `Attach is for an Envoy or a gRPC client that another control plane configures: a mesh,
a gateway, or your own files. It prints what to add to its configuration, once.
Everything after that (routes, stages, endpoints) comes from Cascade over xDS, and
nothing else in that configuration changes.

Requests are routed by the size of their bodies. For exact lengths, a filter of your
own may set x-cascade-tokens and x-gateway-model-name and clear the route cache
(without --internal-listener); these headers are removed from clients' requests first.`,
		Example: `  cascade attach envoy -c fleet.yaml > cascade.yaml`,
	})
	for _, t := range attachTargets {
		a := new(attachFlags)
		target := &cobra.Command{
			Use: t.name, Short: t.short, Long: t.long, Example: t.example, Args: cli.ExactArgs(0),
			RunE: func(cmd *cobra.Command, _ []string) error {
				fleet := wiring.Fleet{}
				fleet.Fleet.Control.Listen = "127.0.0.1:18000"
				if a.file.path != "" {
					var err error
					if fleet, err = a.file.load(cmd); err != nil {
						return err
					}
				}
				return t.print(s, cmd, fleet, a)
			},
		}
		a.flags(target, t.name)
		c.AddCommand(target)
	}
	return c
}

// flags adds the flags of a target.
func (a *attachFlags) flags(c *cobra.Command, target string) {
	a.file.flag(c, "fleet file; without one: a control plane without TLS at 127.0.0.1:18000")
	f := c.Flags()
	if target != "httproute" {
		f.StringArrayVar(&a.control, "control", nil, "host:port of the control plane, where it is not control.listen of the file; may be repeated")
		kind, usage := "envoy", "node id of the Envoy, which {name} in the paths of its certificate stands for"
		if target == "grpc" {
			kind, usage = "grpc", "name of the client: for its certificate, and in a new bootstrap"
		}
		f.StringVar(&a.nodeID, "node-id", wiring.DefaultNodeID(kind), usage)
		f.Lookup("node-id").DefValue = kind + "@<host name>"
	}
	switch target {
	case "envoy", "eg", "istio":
		f.StringVar(&a.Model, "model", "", "the one model that is served, whatever host name a request has; empty: all, as the request says")
		f.BoolVar(&a.EstimatorFilter, "estimator-filter", false, "add the HTTP filter whose configuration, the length estimator inside Envoy, comes by ECDS")
		f.DurationVar(&a.FetchTimeout, "fetch-timeout", 0, "how long Envoy waits for Cascade's answers when it starts (default 2s)")
	case "grpc":
		f.StringVar(&a.into, "into", "", "bootstrap file to add Cascade to")
	}
	if target == "envoy" {
		f.BoolVar(&a.LoadReports, "load-reports", false, "have Envoy report its load to the control plane (part of its bootstrap)")
		f.BoolVar(&a.internalListener, "internal-listener", false, "print an internal listener for one virtual host or route of yours, instead of handing over a listener")
		f.StringVar(&a.Listener, "listener", resources.ListenerName, "with --internal-listener: name of the internal listener")
		f.StringVar(&a.Fallback, "fallback", "", "with --internal-listener: cluster of yours that serves requests which Cascade cannot route")
	}
	a.kubernetes.flags(c, target)
}

func (s *settings) attachGRPC(_ *cobra.Command, fleet wiring.Fleet, a *attachFlags) error {
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
	_, err = s.Stdout.Write(out)
	return err
}

func (s *settings) attachEnvoy(cmd *cobra.Command, fleet wiring.Fleet, a *attachFlags) error {
	if err := cli.RequireFlag(cmd, "internal-listener", "fallback", "listener"); err != nil {
		return err
	}
	c, err := a.config(fleet)
	if err != nil {
		return err
	}
	for _, field := range withoutEffect(fleet) {
		s.Announce(slog.LevelWarn, "%s: has no effect on an attached Envoy: set it in the Envoy's own configuration", field)
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
	if s.JSON {
		out := make(map[string]json.RawMessage, len(pieces))
		for _, p := range pieces {
			out[p.key] = p.value
		}
		return s.Print(out)
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
	_, err = s.Stdout.Write(text.Bytes())
	return err
}

// withoutEffect lists the fields of the fleet file that an Envoy of another owner does not get: its listeners and
// tracers are its owner's.
func withoutEffect(fleet wiring.Fleet) (fields []string) {
	if fleet.Proxy.AccessLog != "" {
		fields = append(fields, "proxy.access_log")
	}
	if fleet.Proxy.TraceCollector != "" {
		fields = append(fields, "proxy.trace_collector")
	}
	return fields
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
	counted := ""
	if h.Route.GetRoute().GetRetryPolicy() != nil {
		counted = "\nEnvoy's stat " + attach.FallbackStat + " counts what the fallback serves."
	}
	for _, p := range [...]struct {
		key, where string
		m          proto.Message
		there      bool
	}{
		{"http_connection_manager", fmt.Sprintf("Merge into the HttpConnectionManager of the listener that Cascade is to route:\nrds takes the place of its route table, and the filters go before the router.\nGive the listener itself per_connection_buffer_limit_bytes: %d.", h.ConnectionBuffer), h.Manager, h.Manager != nil},
		{"listener", "Add to static_resources.listeners, or to what your LDS serves.", h.Listener, h.Listener != nil},
		{"route", "Add to the routes of your virtual host; the match is yours to narrow." + counted, h.Route, h.Route != nil},
		{"bootstrap", "Merge into Envoy's bootstrap; this takes a restart. Envoy needs a node id and a cluster name, there\nor as --service-node and --service-cluster; the fleet file lists the id in proxy.nodes. Without an\noverload manager, clients that read no answers can fill the host's memory.", h.Bootstrap, h.Bootstrap != nil},
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
