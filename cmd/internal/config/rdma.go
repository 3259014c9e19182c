package config

import "net/netip"

// RDMA says how blocks travel by RDMA. Nodes that have devices for it use it.
type RDMA struct {
	// Off has blocks travel by other ways alone.
	Off bool `yaml:"off,omitempty"`
	// TrafficClass is the byte of the IP header with which RoCE v2 marks its packets,
	// four times the DSCP, 0 to 255: what the fabric's lossless queue is chosen by. 0
	// is what the network interface is set to.
	TrafficClass int `yaml:"traffic_class,omitempty"`
	// ServiceLevel is InfiniBand's, 0 to 15, or the priority of frames with a VLAN tag,
	// 0 to 7.
	ServiceLevel int `yaml:"service_level,omitempty"`
}

func (r RDMA) validate(c *checker) {
	if r.TrafficClass != 0 {
		checkRange(c, "rdma.traffic_class", r.TrafficClass, 0, 255)
	}
	if r.ServiceLevel != 0 {
		checkRange(c, "rdma.service_level", r.ServiceLevel, 0, 15)
	}
}

// RDMADevice is an RDMA device of a replica's node.
type RDMADevice struct {
	// Device is its name, as "cascade devices" lists it. Empty: the one that lies
	// nearest to the KV cache.
	Device string `yaml:"device,omitempty"`
	// Port is the device's port, 1 to 255. 0: its first that is active.
	Port int `yaml:"port,omitempty"`
	// Address is the IP address of the port to use where it has several, in VLANs or of
	// both kinds. Empty: one that routers know, of IPv4 before IPv6.
	Address string `yaml:"address,omitempty"`
}

func (d RDMADevice) validate(c *checker, at string) {
	if d.Port != 0 {
		checkRange(c, at+".port", d.Port, 1, 255)
	}
	if len(d.Device) > 64 {
		c.fail(at+".device", "write at most 64 bytes")
	}
	if d.Device == "" && (d.Port != 0 || d.Address != "") {
		c.fail(at+".device", "name the device whose port and address are meant")
	}
	if d.Address != "" {
		if _, err := netip.ParseAddr(d.Address); err != nil {
			c.fail(at+".address", "%q is no IP address", d.Address)
		}
	}
}
