package wiring

import (
	"crypto/ed25519"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/sign"
	"github.com/cascadeinfer/cascade/wasm/slothost"
)

// TestScenarios runs testdata/*.txt (package datadriven; -rewrite rewrites the expected output).
//
//	file PATH            writes a file beside the fleet file; "key" is a new public key
//	fleet                loads a fleet file: model m, replicas r0 and r1, and the lines that follow
//	replica ID           what the components of a replica get
//	model                what the planner gets of model m
//	control              what the control plane gets
//	certificates         the names of the control planes in their certificates
//	tls ROLE NAME        the PEM files of a component
//	policies ROLE NAME [REPLICAS]  the configuration of a component's policy slots
//	modules              the modules of built-in policies, and kinds that nothing calls
//	rules                the site's rules
//	machines             the hosts of the topology
func TestScenarios(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8)) // which bounds instances of modules
	host, err := os.Hostname()
	testkit.NoError(t, err)
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		dir := t.TempDir()
		var f Fleet
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var args []string
			for _, a := range d.CmdArgs {
				args = append(args, a.String())
			}
			var out strings.Builder
			var err error
			switch d.Cmd {
			case "file":
				text := d.Input
				if text == "key" {
					text = publicKey(t)
				}
				writeFile(t, filepath.Join(dir, args[0]), text)
			case "fleet":
				file := filepath.Join(dir, "fleet.yaml")
				writeFile(t, file, baseFleet+d.Input+"\n")
				f, err = Load(file)
			default:
				err = f.describe(&out, d.Cmd, args)
			}
			if err != nil {
				fmt.Fprintln(&out, err)
			}
			if out.Len() == 0 {
				out.WriteString("ok\n")
			}
			return strings.NewReplacer(dir, "DIR", host+":18", "HOST:18").Replace(out.String())
		})
	})
}

// describe prints a part of a fleet's configuration.
func (f *Fleet) describe(w *strings.Builder, what string, args []string) error {
	switch what {
	case "replica":
		r, err := f.Replica(args[0])
		if err != nil {
			return err
		}
		i := slices.IndexFunc(f.Fleet.Replicas, func(o config.Replica) bool { return o.ID == r.ID })
		p := f.Registry()[i]
		fmt.Fprintf(w, "registry: model %s, peer %s, host %s, %+v, adapters %q, draining %v\n", p.Model, p.Peer, p.Host, p.Capacity, p.Adapters, p.Draining)
		front := f.Frontend(r, nil)
		fmt.Fprintf(w, "front end: window %v; bodies of %d MiB, together %d MiB, %d B/s\n", front.FlowTau, front.MaxBody>>20, front.MaxBodies>>20, front.BodyRate)
		m := f.Market(r)
		fmt.Fprintf(w, "market: capacity %d, sample %d, sends %d, receives %d, selector %T, detector %+v, refiner %T; waits for promises %v, keeps requests %v, %d buckets of slack, spills at %d %%, balances up to %d %%, re-prompts %v\n",
			m.Capacity, m.Machine.Sample, m.Machine.MaxConcurrentSends, m.Machine.MaxConcurrentReceives, m.Machine.Selector, m.Detector, m.Refiner, m.Machine.WaitForPromise, m.KeepRequests, len(m.BucketEdges), m.SpillPercent, m.Machine.BalancePercent, m.Reprompt)
		fmt.Fprintf(w, "executor: link %d bytes/s\n", f.LinkRate())
		fmt.Fprintf(w, "links: distance %v, %+v, %.0f bytes per token\n", f.UsesDistance(), f.Links(), f.TokenBytes(r))
		e := f.Engine(r, nil)
		fmt.Fprintf(w, "engine: profile %s, %d tokens, batch %d, adapters %q, blocks %q\n", e.Profile.Name, e.KVTokens, e.MaxBatch, e.Adapters, f.Blocks(r))
	case "model":
		m := f.Rules().Models[0]
		fmt.Fprintf(w, "iteration %v, at most %v of one stage, D4 %.4g, transfer %.4g s per token\n", m.Limits.Iteration, f.Rules().IterationRatio, m.Cost.D4, m.Transfer.PerToken)
		if m.TokenBytes == 0 {
			w.WriteString("no links\n")
			break
		}
		fmt.Fprintf(w, "links %+v; %.4g s per token on a host, %.4g s between hosts\n", m.Links, m.TokenBytes/float64(m.Links.SameHost), m.TokenBytes/float64(m.Links.BetweenHosts))
	case "control":
		c, err := f.Control(nil)
		fmt.Fprintf(w, "%d models, %d replicas, store %v, %+v\n", len(c.Models), len(c.Replicas), c.Store != nil, c.Limits)
		return err
	case "certificates":
		for i, address := range f.ControlPlanes() {
			own := *f
			if i > 0 {
				own.Fleet.Control.Name, own.Fleet.Control.Listen = "", address
			}
			fmt.Fprintf(w, "%s: %s, by itself %s\n", address, f.ControlCertificates()[i], own.ControlCertificate())
		}
	case "tls":
		t := f.TLS(identity.Role(args[0]), args[1])
		fmt.Fprintf(w, "cert %q, key %q, ca %q\n", t.Cert, t.Key, t.CA)
	case "policies":
		return f.describePolicies(w, args)
	case "modules":
		for _, b := range f.BuiltinModules() {
			fmt.Fprintln(w, strings.TrimSpace(b.Name+" "+strings.ReplaceAll(string(b.Configuration), "\n", " ")))
		}
		for k := abi.Configure + 1; k < abi.NumKinds; k++ {
			if why := f.UnusedReason(k); why != "" {
				fmt.Fprintf(w, "%s unused: %s\n", k, why)
			}
		}
	case "rules":
		s, err := f.RegoRules()
		for _, path := range slices.Sorted(maps.Keys(s.Files)) {
			fmt.Fprintf(w, "%s: %s\n", path, s.Files[path])
		}
		fmt.Fprintf(w, "data: %v\n", s.Data)
		return err
	case "machines":
		for _, name := range slices.Sorted(maps.Keys(f.Machines)) {
			fmt.Fprintf(w, "%s: GPU 3 %v\n", name, f.Machines[name].GPU(3) != nil)
		}
	default:
		return fmt.Errorf("unknown directive %q", what)
	}
	return nil
}

func (f *Fleet) describePolicies(w *strings.Builder, args []string) error {
	replicas := 0
	if len(args) > 2 {
		replicas, _ = strconv.Atoi(args[2])
	}
	fmt.Fprintf(w, "enabled: %v\n", f.ModulesEnabled())
	p, err := f.Policies(identity.Role(args[0]), args[1], replicas)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "keys %d, threshold %d, cache %q, instances %d\n", len(p.Ring.Keys), p.Ring.Threshold, p.Cache, p.Instances)
	fmt.Fprintf(w, "marks %q%s\n", p.MarksFile, p.MarksWarning)
	if info, err := os.Stat(filepath.Dir(p.MarksFile)); err == nil && p.MarksFile != "" {
		fmt.Fprintf(w, "directory of marks: %v\n", info.Mode())
	}
	for k := abi.Configure + 1; k < abi.NumKinds; k++ {
		fmt.Fprintf(w, "%s: %+v, ladder %v, patience %d\n  %s\n  %s\n", k, p.Limits[k], p.Gates[k].Ladder, p.Gates[k].Patience, gateText(p.Gates[k].Shadow), gateText(p.Gates[k].Canary))
	}
	for _, warning := range f.Warnings() {
		fmt.Fprintf(w, "warning: %s\n", warning)
	}
	return nil
}

func gateText(g slothost.Gate) string {
	return fmt.Sprintf("calls %d, soak %d, worse %d, compared %d", g.Calls, g.Soak, g.Worse, g.Compared)
}

// baseFleet is the beginning of the fleet files.
const baseFleet = `models: [{name: m, context: 4096, profile: h200-llama-3.1-8b, batch: 8}]
replicas:
- {id: r0, address: "127.0.0.1:9000", peer: "127.0.0.1:9100", engine: "http://127.0.0.1:8000", tp: 2}
- {id: r1, address: "127.0.0.1:9001", peer: "127.0.0.1:9101", engine: "http://127.0.0.1:8001", tp: 2, drain: true}
`

// load loads a fleet file with further lines.
func load(t *testing.T, more string) Fleet {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	writeFile(t, path, baseFleet+more)
	f, err := Load(path)
	testkit.NoError(t, err)
	return f
}

// writeFile writes a file and makes its directory.
func writeFile(t *testing.T, path, text string) {
	t.Helper()
	testkit.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	testkit.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func publicKey(t *testing.T) string {
	t.Helper()
	_, secret, err := ed25519.GenerateKey(nil)
	testkit.NoError(t, err)
	public, _, err := sign.EncodeKeys(secret)
	testkit.NoError(t, err)
	return string(public)
}
