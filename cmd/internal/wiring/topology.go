package wiring

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/policies"
)

// Place is where a replica keeps its KV cache, and by which RDMA port its blocks travel.
func (f *Fleet) Place(r config.Replica) topology.Place {
	p := topology.Place{
		Replica: policies.ReplicaID(r.ID), Node: r.Node, GPU: topology.Unknown,
		Adapter: topology.Adapter{Off: f.RDMA.Off, Device: r.RDMA.Device, Port: r.RDMA.Port},
	}
	if r.GPU != nil {
		p.GPU = *r.GPU
	}
	return p
}

// maxMachineFile bounds a file of machines.
const maxMachineFile = 16 << 20

// ReadMachines reads what "cascade devices --json" has printed, or {"machines": […]}
// of the same.
func ReadMachines(path string) ([]*topology.Machine, error) {
	text, err := readSmall(path, maxMachineFile)
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
			return nil, errors.New("a machine without a name")
		}
	}
	if len(in.Machines) == 0 {
		return nil, errors.New(`it has no machine with a name; "cascade devices --json" prints one`)
	}
	return in.Machines, nil
}

// readTopology reads the machines that the fleet file names, by their nodes.
func (f *Fleet) readTopology() error {
	f.Machines = make(topology.Machines)
	for i, name := range f.Topology {
		list, err := ReadMachines(f.resolvePath(name))
		if err != nil {
			return fmt.Errorf("topology[%d]: %s: %w", i, f.resolvePath(name), err)
		}
		for _, m := range list {
			if f.Machines[m.Name] != nil {
				return fmt.Errorf("topology[%d]: %s: machine %q is there twice", i, f.resolvePath(name), m.Name)
			}
			f.Machines[m.Name] = m
		}
	}
	return nil
}
