package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/controld"
	"github.com/cascadeinfer/cascade/cmd/internal/daemon"
	"github.com/cascadeinfer/cascade/cmd/internal/fleetfile"
	"github.com/cascadeinfer/cascade/cmd/internal/hostdevices"
	"github.com/cascadeinfer/cascade/cmd/internal/inprocess"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/migrator/device/inventory"
)

// The addresses of a fleet without a file: replica i uses the loopback ports upEngines+i,
// upFronts+i and upPeers+i.
const (
	upEngines = 8000
	upFronts  = 9000
	upPeers   = 9100
	// upReplicas is the number of replicas whose ports fit below the proxy's port.
	upReplicas = 80

	upProxy   = "127.0.0.1:8080"
	upControl = "127.0.0.1:18000"
	upAdmin   = "127.0.0.1:18001"
)

// upFlags are the flags of "cascade up".
type upFlags struct {
	file     fleetFile
	made     emulationFlags
	external bool
	drain    time.Duration
	plugins  pluginFlags
}

// newUp is "cascade up": a whole fleet in one process.
func newUp(s *settings) *cobra.Command {
	u := &upFlags{}
	c := &cobra.Command{
		Use:   "up",
		Short: "Run a whole fleet in one process: engines, migrators, control plane, proxy",
		Long: `Up runs every component of a fleet in this process; they communicate over real sockets and
real xDS, as on many hosts. Without -c it emulates eight replicas of one model
on fixed addresses: the proxy on 127.0.0.1:8080, the control plane on 18000 and 18001,
engines, migrators and their peer listeners on 8000, 9000, 9100 and up.

With -c it runs the fleet of the file. --external-engines leaves the engines to you:
the file's URLs are used as they are. --envoy puts a real Envoy in front.

The file is watched. "drain: true" takes a replica out of its stage, false puts it
back; a replica that leaves the file gets no new requests; one that is added joins
when its own migrator reports ("cascade migrator --replica ID" in another process).
Up starts no component later: other edits of replicas that it runs are rejected, the error
is logged, and the last valid list stays in force.

Policies decide as WebAssembly modules: those that "make plugins" builds beside this
program are signed with a key of this run, or one that "state" keeps, and pushed, as an
operator would push them ("cascade policy status" shows them). With policies.keys in the
file, you push modules yourself; --native uses the native policies instead.

With --device cuda the emulated engines keep their KV in the memory of a GPU: the one that
"gpu" in the fleet file says, else the first. Migrations between them then use transport
cuda, as between real engines.

With OTEL_EXPORTER_OTLP_ENDPOINT set, every request is a span, and its migrations belong
to its trace, exported by OTLP over gRPC.

SIGINT or SIGTERM ends it: no new request is taken, running streams get --drain to
end. A second signal ends it at once.`,
		Example: `  cascade up
  cascade up --replicas 16 --speed 10 --profile h200-llama-3.1-8b
  cascade up -c fleet.yaml
  cascade up -c fleet.yaml --external-engines --envoy "$(which envoy)"`,
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			fleet, err := u.fleet(cmd)
			if err != nil {
				return err
			}
			return s.runUp(cmd.Context(), fleet, u)
		},
	}
	u.file.flag(c, "fleet file; without one, a fleet is emulated as the other flags say")
	u.made.flags(c, 1)
	u.plugins.flags(c)
	f := c.Flags()
	f.BoolVar(&u.external, "external-engines", false, "the engines of the fleet file run elsewhere; emulate none")
	f.DurationVar(&u.drain, "drain", 10*time.Second, "how long streams may go on after a signal; what is left is cut")
	return c
}

// fleet returns the fleet of the file, or the one that the flags describe.
func (u *upFlags) fleet(cmd *cobra.Command) (wiring.Fleet, error) {
	if u.file.path == "" {
		if u.external {
			return wiring.Fleet{}, cli.Usagef(cmd, "--external-engines needs a fleet file that names the engines: add -c")
		}
		if u.made.replicas < 1 || u.made.replicas > upReplicas {
			return wiring.Fleet{}, cli.Usagef(cmd, "--replicas %d: 1 to %d have fixed addresses; write a fleet file for more", u.made.replicas, upReplicas)
		}
		fleet, err := u.made.buildFleet()
		if err == nil {
			setFixedAddresses(&fleet.Fleet)
		}
		return fleet, err
	}
	if err := refuseBesideFile(cmd, "a fleet", "replicas", "profile", "context", "speed", "window", "tp"); err != nil {
		return wiring.Fleet{}, err
	}
	fleet, err := u.file.load(cmd)
	if err == nil && (fleet.Fleet.TLS.Cert != "" || fleet.Proxy.TLS.Cert != "") {
		err = fmt.Errorf("%s: tls: \"up\" runs all components in one process with plain text on loopback; remove tls and proxy.tls, or run control, migrator and proxy as processes of their own", u.file.path)
	}
	return fleet, err
}

// setFixedAddresses sets the addresses that the help names.
func setFixedAddresses(f *config.Fleet) {
	f.Control.Listen, f.Control.Admin, f.Proxy.Listen = upControl, upAdmin, upProxy
	for i := range f.Replicas {
		r := &f.Replicas[i]
		r.Engine = fmt.Sprintf("http://127.0.0.1:%d", upEngines+i)
		r.Address = fmt.Sprintf("127.0.0.1:%d", upFronts+i)
		r.Peer = fmt.Sprintf("127.0.0.1:%d", upPeers+i)
	}
}

func (s *settings) runUp(ctx context.Context, fleet wiring.Fleet, u *upFlags) error {
	log, err := s.Logger()
	if err != nil {
		return err
	}
	if text := ignoredByUp(fleet.Fleet); text != "" {
		s.Announce(slog.LevelWarn, "%s", text)
	}
	d, err := daemon.New(ctx, daemon.Config{Log: log})
	if err != nil {
		return err
	}
	defer d.Close()
	// preparePlugins changes fleet's policies, and inprocess.New writes the bound addresses into its
	// replicas; asked keeps what the file or the flags asked for.
	asked := fleet
	asked.Fleet.Replicas = slices.Clone(fleet.Fleet.Replicas)
	all, err := s.preparePlugins(&fleet, u.plugins)
	if err != nil {
		return err
	}
	cards := newGPUs(log)
	var seen *hostdevices.Watcher // for real engines; emulated ones use the fleet file's topology
	if u.external {
		seen = hostdevices.New(hostdevices.Config{Host: inventory.Config{CUDA: cudaLibrary(), NVML: nvmlLibrary()}, Logger: log})
	}
	f, err := inprocess.New(inprocess.Config{Fleet: fleet, External: u.external, Machine: seen.Machine, Envoy: u.made.envoy, GPUs: cards, Device: u.made.device, Drain: u.drain, Room: d.Room, Tracer: d.Tracer("up"), Logger: log})
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w: stop what listens there, or choose other addresses in a fleet file (-c)", err)
	}
	if err != nil {
		return err
	}
	s.Announce(slog.LevelInfo, "%s", hostdevices.Describe(inventory.Config{CUDA: cudaLibrary(), NVML: nvmlLibrary()}, log))
	s.Announce(slog.LevelInfo, "starting %d replicas", len(fleet.Fleet.Replicas))
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return f.Run(ctx) })
	g.Go(func() error { return seen.Run(ctx) })
	g.Go(func() error { return s.printStarted(ctx, fleet, f, all) })
	if u.file.path != "" {
		g.Go(func() error {
			return fleetfile.Watch(ctx, u.file.path, asked, log, func(now wiring.Fleet) (err error) {
				if now.Fleet.Replicas, err = mergeReplicas(asked.Fleet.Replicas, fleet.Fleet.Replicas, now.Fleet.Replicas); err != nil {
					return err
				}
				return f.Control().SetReplicas(now.Registry())
			}, func(now wiring.Fleet, restart []string, err error) {
				f.Control().SetFleetFile(controld.DescribeFile(now, restart), err)
			})
		})
	}
	return errors.Join(g.Wait(), cards.Close())
}

// ignoredByUp returns a warning if fields of a fleet name servers of daemons, which "up" does not run as processes of
// their own; "" if there are none.
func ignoredByUp(f config.Fleet) string {
	var fields []string
	if slices.ContainsFunc(f.Replicas, func(r config.Replica) bool { return r.Admin != "" }) {
		fields = append(fields, "replicas[].admin")
	}
	if f.Proxy.Admin != "" {
		fields = append(fields, "proxy.admin")
	}
	if len(fields) == 0 {
		return ""
	}
	return fmt.Sprintf("%s: \"up\" does not serve them: the metrics of this process are those of %s/metrics", strings.Join(fields, ", "), f.Control.Admin)
}

// mergeReplicas returns the replicas after an edit of the file; those that run in this process keep
// their addresses. asked and running are the same replicas, as the file described them at the start
// and as they run.
func mergeReplicas(asked, running, now []config.Replica) ([]config.Replica, error) {
	out := slices.Clone(now)
	for i, r := range now {
		at := slices.IndexFunc(asked, func(a config.Replica) bool { return a.ID == r.ID })
		if at < 0 {
			continue
		}
		was := asked[at]
		was.Drain = r.Drain
		if !reflect.DeepEqual(was, r) {
			return nil, fmt.Errorf("replica %s runs in this process: only \"drain\" can change; stop \"cascade up\" and start it again", r.ID)
		}
		out[i] = running[at]
		out[i].Drain = r.Drain
	}
	return out, nil
}

// printStarted waits until the fleet serves, and prints how to use it.
func (s *settings) printStarted(ctx context.Context, fleet wiring.Fleet, f *inprocess.Fleet, all []policyPlugin) error {
	ready, stop := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("the fleet was not ready within %v; use --log info for details", startTimeout))
	defer stop()
	if err := f.Ready(ready); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	if err := pushPlugins(ctx, f, all); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		s.Announce(slog.LevelError, "cascade: modules: %v", err)
	}
	base := reachableURL(f.URL())
	if s.JSON {
		return s.Print(startedOutput{URL: base, Status: f.AdminURL() + "/status"})
	}
	look := "cascade status"
	if f.AdminURL() != "http://"+upAdmin {
		look += " --control " + f.AdminURL()
	}
	_, err := fmt.Fprintf(s.Stdout, `%d replicas serve %s on %s. Try:

  %s
  %s

The console is at %s/ in a browser. Ctrl-C ends it.
`, len(fleet.Fleet.Replicas), modelNames(fleet.Models), base, curlCommand(base, fleet.Models[0], len(fleet.Models) > 1), look, f.AdminURL())
	return err
}

// startedOutput is what "up --json" prints when the fleet serves.
type startedOutput struct {
	URL    string `json:"url"`    // base URL for requests
	Status string `json:"status"` // of the control plane
}

// reachableURL returns a base URL that a client can connect to: it replaces an address that means
// all interfaces by loopback.
func reachableURL(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return base
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil && ip.IsUnspecified() {
		u.Host = net.JoinHostPort("127.0.0.1", u.Port())
	}
	return u.String()
}

func modelNames(models []config.Model) string {
	out := make([]string, len(models))
	for i, m := range models {
		out[i] = m.Name
	}
	return strings.Join(out, ", ")
}

// curlCommand returns a command line that sends a completion request to a model. If several models
// share the fleet, it uses a host name of the model, if it has one.
func curlCommand(url string, m config.Model, several bool) string {
	host := ""
	if several && len(m.Hosts) > 0 {
		host = fmt.Sprintf(" -H 'host: %s'", m.Hosts[0])
	}
	name, _ := json.Marshal(m.Name) // a string can be encoded
	return fmt.Sprintf(`curl %s/v1/completions%s -H 'content-type: application/json' -d '{"model":%s,"prompt":"Once upon a time","max_tokens":16}'`,
		url, host, strings.ReplaceAll(string(name), "'", `'\''`))
}
