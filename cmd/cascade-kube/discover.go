package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/cmd/cascade-kube/internal/clusterwatch"
	"github.com/cascadeinfer/cascade/cmd/internal/adminserver"
	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/discovery"
)

// discoverFlags are the flags of "cascade-kube discover".
type discoverFlags struct {
	file          discovery.FleetFile
	namespace     string
	pool, service string
	kubeconfig    string
	admin         string
	metrics       string
	check         bool
	conditions    bool
	rules         discovery.Rules
	own           ownPodFlags
}

// newDiscover is "cascade-kube discover".
func newDiscover(a *cli.App) *cobra.Command {
	d := &discoverFlags{}
	c := &cobra.Command{
		Use:   "discover -c BASE -o FILE (--pool NAME | --service NAME | --own-pod)",
		Short: "Write the ready Pods of a cluster into a fleet file as its replicas",
		Long: `Discover runs beside a control plane and writes its fleet file: the file BASE, which has
everything but replicas, completed with the replicas that it finds in a Kubernetes
cluster. The control plane watches that file, so that either may restart, and the API server may be
away: until it is back the last replicas stay.

Replicas are the Pods that an InferencePool (inference.networking.k8s.io/v1) or a Service
selects, one migrator in each. Those that are ready take new requests: with --pool by the Pods'
condition Ready, with --service by its EndpointSlices. A replica whose Pod terminates, or
is not ready any more, drains: its running requests migrate. Annotations ` + discovery.Prefix + `…
of Pods set model, ports and capacity; deploy/kubernetes/discovery.md lists them. A Pod with a bad
one is left out, and the reason is logged, shown by /status and written as an Event of the pool or
Service. The last replicas of a model stay listed until it has others.

With --conditions each Pod gets the condition ` + discovery.ConditionType + `: true while its replica takes new
requests. A Pod that names it as a readiness gate is ready only then, so that a rollout waits until a new Pod is
a replica, and its Service sends a draining one no new requests.

The id of a replica is NAME.UID of its Pod, which its migrator gets as --replica. Of several
control planes each has a discover of its own.

With --own-pod it is an init container of a Pod with an engine and its migrator: it writes the
migrator's fleet file, with this Pod's replica, prints the replica's id and ends. It needs no
access to the API server: the downward API gives it the environment variables POD_NAME, POD_UID,
POD_IP and NODE_NAME and, in the directory --pod-info, the files "labels" and "annotations".

On --admin, /status lists all Pods and what they are, and why; /readyz fails until the
fleet file is written, and /metrics has cascade_discovery_… .`,
		Example: `  cascade-kube discover -c /etc/cascade/base.yaml -o /run/cascade/fleet.yaml --pool vllm
  cascade-kube discover -c base.yaml -o fleet.yaml --namespace llm --service vllm --kubeconfig ~/.kube/config
  cascade-kube discover -c /etc/cascade/base.yaml -o /run/cascade/fleet.yaml --own-pod --port 9000 --pod-info /etc/podinfo
  cascade migrator -c /run/cascade/fleet.yaml --replica "$POD_NAME.$POD_UID"     # the id that it prints`,
		Args: cli.ExactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			if d.check {
				return d.checkFile(c)
			}
			if err := cmp.Or(cli.ExcludeFlags(c, "own-pod", "pool"), cli.ExcludeFlags(c, "own-pod", "service"), cli.RequireFlag(c, "own-pod", "pod-info", "port")); err != nil {
				return err
			}
			if err := d.validate(); err != nil {
				return cli.Usagef(c, "%w", err)
			}
			if d.own.wanted {
				id, err := d.writeOwnPod()
				if err != nil {
					return err
				}
				return a.PrintLine(map[string]string{"id": id}, "%s", id)
			}
			log, err := a.Logger()
			if err != nil {
				return err
			}
			return d.run(c.Context(), log)
		},
	}
	f := c.Flags()
	f.StringVarP(&d.file.Base, "config", "c", "", "fleet file without replicas; read again when it changes")
	f.StringVarP(&d.file.Path, "out", "o", "", "fleet file to write, for the control plane")
	f.StringVarP(&d.namespace, "namespace", "n", "", "namespace of the pool or Service; default: the Pod's own, or the kubeconfig's")
	f.StringVar(&d.pool, "pool", "", "InferencePool that selects the Pods")
	f.StringVar(&d.service, "service", "", "Service that selects the Pods")
	kubeconfigFlag(c, &d.kubeconfig)
	f.StringVar(&d.admin, "admin", "127.0.0.1:18002", "host:port on loopback of /status, /metrics, /healthz and /readyz")
	f.StringVar(&d.metrics, adminserver.MetricsFlag, "", adminserver.MetricsUsage+"; the server's certificate is the control plane's in the fleet file")
	f.BoolVar(&d.conditions, "conditions", false, "write the condition "+discovery.ConditionType+" into the status of each Pod, for readiness gates; needs the right to patch pods/status")
	f.BoolVar(&d.check, "check", false, "only check that the file of -o is there and valid, for a startup probe")
	d.own.flags(c)
	// The ports of Pods without annotations.
	f.IntVar(&d.rules.PeerPort, "peer-port", 9100, "port at which migrators serve their peers")
	f.IntVar(&d.rules.AdminPort, "admin-port", 0, "port of the migrators' /metrics; 0: none")
	f.IntVar(&d.rules.EnginePort, "engine-port", 8000, "port of the engine in its Pod")
	return c
}

func (d *discoverFlags) validate() error {
	switch {
	case d.file.Base == "" || d.file.Path == "":
		return errors.New("-c and -o are required: the fleet file without replicas, and the one to write")
	case samePath(d.file.Base, d.file.Path):
		return errors.New("-c and -o must be different files")
	case !d.own.wanted && (d.pool == "") == (d.service == ""):
		return errors.New("set either --pool or --service, or --own-pod")
	}
	for name, port := range map[string]int{"--peer-port": d.rules.PeerPort, "--engine-port": d.rules.EnginePort, "--admin-port": max(d.rules.AdminPort, 1)} {
		if port < 1 || port > 65535 {
			return fmt.Errorf("%s %d: must be a port, 1 to 65535", name, port)
		}
	}
	if a, err := netip.ParseAddrPort(d.admin); err != nil || !a.Addr().IsLoopback() {
		return fmt.Errorf("--admin %q: must be IP:port on loopback: it has no authentication", d.admin)
	}
	return nil
}

// checkFile returns an error unless there is a fleet file for the control plane.
func (d *discoverFlags) checkFile(c *cobra.Command) error {
	if d.file.Path == "" {
		return cli.Usagef(c, "-o is required")
	}
	replicas, err := d.file.Replicas()
	if err == nil && len(replicas) == 0 {
		err = fmt.Errorf("%s is not written yet", d.file.Path)
	}
	return err
}

// samePath reports whether two paths name the same file.
func samePath(a, b string) bool {
	if x, err := filepath.Abs(a); err == nil {
		a = x
	}
	if x, err := filepath.Abs(b); err == nil {
		b = x
	}
	return a == b
}

// run discovers until ctx ends.
func (d *discoverFlags) run(ctx context.Context, log *slog.Logger) error {
	if _, _, err := d.file.ReadBase(); err != nil {
		return err
	}
	client, namespace, err := newClients(d.kubeconfig, d.namespace)
	if err != nil {
		return err
	}
	d.rules.SetsConditions = d.conditions
	w, err := clusterwatch.New(clusterwatch.Config{Client: client.typed, Dynamic: client.dynamic, Namespace: namespace, Pool: d.pool, Service: d.service, Logger: log})
	if err != nil {
		return err
	}
	events := clusterwatch.NewEvents(clusterwatch.EventsConfig{Client: client.typed, Regarding: w.Regarding, Logger: log})
	kept := keeperConfig{file: d.file, rules: d.rules, changed: events.Record, faults: w.Faults, log: log}
	var conditions *clusterwatch.Conditions
	if d.conditions {
		conditions = clusterwatch.NewConditions(clusterwatch.ConditionsConfig{Client: client.typed, Namespace: namespace, Logger: log})
		kept.conditions = conditions.Set
		kept.faults = func(now time.Time) []string { return append(w.Faults(now), conditions.Faults(now)...) }
	}
	k := newKeeper(kept)
	servers := statusServers{}
	if servers.daemon, err = d.newDaemon(ctx, log); err != nil {
		return err
	}
	defer servers.daemon.Close()
	if servers.admin, err = net.Listen("tcp", d.admin); err != nil {
		return fmt.Errorf("--admin: %w", err)
	}
	if servers.metrics, err = adminserver.ListenMetrics(d.metrics, log); err != nil {
		servers.admin.Close()
		return err
	}
	log.Info("discovery started", "source", w.String(), "file", d.file.Path, "admin", servers.admin.Addr().String())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return w.Run(ctx, k.apply) })
	g.Go(func() error { return events.Run(ctx) })
	if conditions != nil {
		g.Go(func() error { return conditions.Run(ctx) })
	}
	g.Go(func() error { return k.run(ctx) })
	g.Go(func() error { return servers.serve(ctx, k) })
	return g.Wait()
}
