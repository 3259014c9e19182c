package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/hostdevices"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/migrator/device/inventory"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// devicesFlags are the flags of "cascade devices".
type devicesFlags struct {
	fleetFile
	where    inventory.Config
	machines []string
	control  string
	all      bool
}

// newDevices is "cascade devices": the devices of this host, and the transports
// that follow from them.
func newDevices(s *settings) *cobra.Command {
	f := &devicesFlags{}
	c := &cobra.Command{
		Use:   "devices",
		Short: "Show this host's GPUs, NICs and links, and the transport for each pair of replicas",
		Long: `Devices inspects the host that it runs on: GPUs with their memory, links and
health, NICs, NUMA nodes, and the libraries that transports need. It needs no running
fleet, changes nothing, and a machine without a GPU is no error: what is missing is
listed, each with its reason.

Then it says, for each pair of replicas of the fleet file, by which transport KV blocks
would move, what that goes over, and an estimate of its speed from data sheets. Without
a fleet file the pairs are those of the machine's GPUs. -a also lists the paths that
would come next, and those that are closed, with the reason.

  same GPU, NVLink, PCIe P2P   transport cuda, on one host
  host memory                  transport shm, on one host, where no pool is on a GPU
  RDMA (GPUDirect)             transport verbs, from GPU memory to GPU memory
  RDMA (host bounce)           transport verbs, where a pool is in host memory, or in
                               that of a GPU that no NIC reaches
  TCP                          transport tcp; out of a GPU's memory and into it by way
                               of the host

With --control it asks a running fleet's control plane instead: where each replica says
that its KV cache is, and for each pair the transport that the receiver takes first, with
the rate by which plans are made and the one that was measured. Transports that
replicas report as broken, or as held back for a peer, are left out, with the reason. Of more than
12 replicas equal pairs are counted; -a lists them all.

A replica is on the GPU that "gpu" in the fleet file says; without it its KV cache is
in the machine's memory. Its RDMA port is the one that its "rdma" names, else the nearest
that is up; with certificates, and without "rdma" in tls.plaintext, there is none. Other
hosts are known only from --machine or the fleet file's "topology": save the output of
"cascade devices --json" on each of them, and name the files.

Columns: PCIe is the link's generation and width, at its best; distances are those of
nvidia-smi: PIX one PCIe switch, PXB several, PHB the root complex, NODE two root
complexes of one NUMA node, SYS two NUMA nodes.`,
		Example: `  cascade devices
  cascade devices -c fleet.yaml -a
  cascade devices --json > a.json                      # on host a
  cascade devices -c fleet.yaml --host b --machine a.json
  cascade devices --control http://127.0.0.1:18001     # the whole fleet`,
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.control == "" {
				return s.devices(f)
			}
			for _, local := range []string{"config", "host", "machine"} {
				if cmd.Flags().Changed(local) {
					return cli.Usagef(cmd, "--control inspects a running fleet: --%s applies to this host", local)
				}
			}
			base, err := parseBaseURL(cmd, "--control", f.control, upAdmin)
			if err != nil {
				return err
			}
			d, err := fetch[control.Devices](cmd.Context(), controlRequest{base: base, path: "devices"})
			if err != nil {
				return err
			}
			out := hostdevices.NewFleetReport(cmd.Context(), d, s.JSON)
			if s.JSON {
				return s.Print(out)
			}
			return out.Text(cmd.Context(), s.Stdout, f.all)
		},
	}
	f.flag(c, "fleet file whose replicas are to be paired")
	fl := c.Flags()
	fl.StringVar(&f.where.Name, "host", "", "name of this host in the fleet file (default: its only host, else the host's own name)")
	fl.StringArrayVar(&f.machines, "machine", nil, "file with the output of \"devices --json\" on another host; may be repeated")
	fl.StringVar(&f.control, "control", "", "base URL of a control plane's admin server, to show its whole fleet")
	fl.BoolVarP(&f.all, "all", "a", false, "list every path of every pair, not only the best one")
	fl.StringVar(&f.where.Sysfs, "sysfs", "/sys", "where sysfs is mounted, for containers")
	fl.StringVar(&f.where.Proc, "proc", "/proc", "where proc is mounted")
	fl.StringVar(&f.where.NVML, "nvml", topology.NVML, "soname or path of NVML")
	fl.StringVar(&f.where.CUDA, "cuda", topology.CUDA, "soname or path of the CUDA driver's library")
	fl.StringVar(&f.where.Verbs, "verbs", topology.Verbs, "soname or path of libibverbs")
	return c
}

func (s *settings) devices(f *devicesFlags) error {
	var fleet *wiring.Fleet
	var fromFile topology.Machines // from the fleet file
	if f.path != "" {
		read, err := wiring.Load(f.path)
		if err != nil {
			return err
		}
		fleet, fromFile = &read, read.Machines
	}
	f.where.Name = cmp.Or(f.where.Name, hostName(fleet))
	machines := topology.Machines{}
	for _, path := range f.machines {
		list, err := wiring.ReadMachines(path)
		if err != nil {
			return fmt.Errorf("--machine %s: %w", path, err)
		}
		for _, m := range list {
			machines[m.Name] = m
		}
	}
	m, failed := inventory.Read(f.where)
	machines[m.Name] = m
	maps.Copy(machines, fromFile) // takes precedence, as in migrators
	out := hostdevices.Report{Machine: m, Missing: inventory.Missing(m), Pairs: machines.Pairs(replicaPlaces(fleet, m))}
	if out.Missing == nil {
		out.Missing = []string{}
	}
	if out.Pairs == nil {
		out.Pairs = []topology.Pair{}
	}
	if failed != nil {
		out.Failed = strings.Split(failed.Error(), "\n")
	}
	if s.JSON {
		return s.Print(out)
	}
	return out.Text(s.Stdout, f.all)
}

// hostName returns the host of all replicas of the fleet, else the host's name.
func hostName(fleet *wiring.Fleet) string {
	host, err := os.Hostname()
	if err != nil {
		host = "local"
	}
	if fleet == nil {
		return host
	}
	for _, r := range fleet.Replicas {
		if r.Host != fleet.Replicas[0].Host {
			return host
		}
	}
	return fleet.Replicas[0].Host
}

// replicaPlaces returns the places of the fleet's replicas. Without a fleet, it returns one replica
// per GPU of the host.
func replicaPlaces(fleet *wiring.Fleet, m *topology.Machine) (out []topology.Place) {
	if fleet == nil {
		for _, g := range m.GPUs {
			if g.Index != topology.Unknown {
				out = append(out, topology.Place{Replica: policies.ReplicaID(fmt.Sprint("gpu", g.Index)), Node: m.Name, GPU: g.Index})
			}
		}
		return out
	}
	for _, r := range fleet.Replicas {
		out = append(out, fleet.Place(r))
	}
	return out
}
