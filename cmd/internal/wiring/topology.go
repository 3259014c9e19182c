package wiring

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/atomicfile"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/policies"
)

// Place returns where a replica keeps its KV cache, and the RDMA port by which its
// blocks travel.
func (f *Fleet) Place(r config.Replica) topology.Place {
	device, port := r.RDMA.Device()
	p := topology.Place{
		Replica: policies.ReplicaID(r.ID), Node: r.Host, GPU: topology.Unknown,
		Adapter: topology.Adapter{Off: !f.UsesRDMA(), Device: device, Port: port},
	}
	if r.GPU != nil {
		p.GPU = *r.GPU
	}
	return p
}

// UsesRDMA reports whether KV blocks travel by RDMA where hosts have devices. RDMA encrypts nothing, so a fleet with
// certificates must allow it.
func (f *Fleet) UsesRDMA() bool {
	return f.Fleet.TLS.Cert == "" || f.Fleet.TLS.Allows(config.PlaintextRDMA)
}

// maxMachineFile bounds a topology file, in bytes.
const maxMachineFile = 16 << 20

// ReadMachines reads a topology file: the output of "cascade devices --json", or
// {"machines": […]} of several.
func ReadMachines(path string) ([]*topology.Machine, error) {
	text, err := atomicfile.Read(path, maxMachineFile)
	if err != nil {
		return nil, err
	}
	var in struct {
		Machine  *topology.Machine   `json:"machine"`
		Machines []*topology.Machine `json:"machines"`
	}
	if err := json.Unmarshal(text, &in); err != nil {
		return nil, err
	}
	if in.Machine != nil {
		in.Machines = append(in.Machines, in.Machine)
	}
	for _, m := range in.Machines {
		if m == nil || m.Name == "" {
			return nil, errors.New("a machine has no name")
		}
	}
	if len(in.Machines) == 0 {
		return nil, errors.New(`the file describes no machine; "cascade devices --json" prints one`)
	}
	return in.Machines, nil
}

// readTopology reads the topology files of the fleet file.
func (f *Fleet) readTopology() error {
	f.Machines = make(topology.Machines)
	for i, name := range f.Topology {
		list, err := ReadMachines(f.resolvePath(name))
		if err != nil {
			return fmt.Errorf("topology[%d]: %s: %w", i, f.resolvePath(name), err)
		}
		for _, m := range list {
			if f.Machines[m.Name] != nil {
				return fmt.Errorf("topology[%d]: %s: machine %q is described twice", i, f.resolvePath(name), m.Name)
			}
			f.Machines[m.Name] = m
		}
	}
	return nil
}
