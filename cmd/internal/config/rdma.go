package config

import (
	"net/netip"
	"strconv"
	"strings"
)

// RDMA configures how KV blocks travel by RDMA. Hosts that have RDMA devices use
// them.
type RDMA struct {
	// TrafficClass is the byte of the IP header with which RoCE v2 marks its
	// packets, four times the DSCP, 0 to 255: it selects the fabric's lossless
	// queue.
	TrafficClass int `yaml:"traffic_class,omitempty" default:"the network interface's"`
	// ServiceLevel is InfiniBand's service level, 0 to 15, or the priority of
	// frames with a VLAN tag, 0 to 7.
	ServiceLevel int `yaml:"service_level,omitempty" default:"0"`
}

func (r RDMA) validate(c *checker) {
	if r.TrafficClass != 0 {
		checkRange(c, "rdma.traffic_class", r.TrafficClass, 0, 255)
	}
	if r.ServiceLevel != 0 {
		checkRange(c, "rdma.service_level", r.ServiceLevel, 0, 15)
	}
}

// RDMAPort selects an RDMA device of a replica's host, its port, and an IP address of the port: DEVICE[:PORT][@ADDRESS].
type RDMAPort string

// cut returns the parts; hasPort and hasAddress say which are there.
func (p RDMAPort) cut() (device, port, address string, hasPort, hasAddress bool) {
	device, address, hasAddress = strings.Cut(string(p), "@")
	device, port, hasPort = strings.Cut(device, ":")
	return device, port, address, hasPort, hasAddress
}

// Device returns the name of the device and its port; 0 is the first active one.
func (p RDMAPort) Device() (device string, port int) {
	device, text, _, _, _ := p.cut()
	number, _ := strconv.ParseUint(text, 10, 8)
	return device, int(number)
}

// Address returns the IP address; "" for a routable one, IPv4 before IPv6.
func (p RDMAPort) Address() string {
	_, _, address, _, _ := p.cut()
	return address
}

func (p RDMAPort) validate(c *checker, at string) {
	name, port, address, hasPort, hasAddress := p.cut()
	number, err := strconv.ParseUint(port, 10, 8)
	switch {
	case len(name) > 64:
		c.fail(at, "the device's name has %d bytes; at most 64 are allowed", len(name))
	case name == "" && (hasPort || hasAddress):
		c.fail(at, "%q: name the device to which port and address belong", string(p))
	case hasPort && (err != nil || number == 0):
		c.fail(at, "%q: the port must be from 1 to 255", string(p))
	}
	if hasAddress {
		if _, err := netip.ParseAddr(address); err != nil {
			c.fail(at, "%q: %q is not an IP address", string(p), address)
		}
	}
}
