package config

import "net/netip"

// RDMA configures how KV blocks travel by RDMA. Hosts that have RDMA devices use
// them.
type RDMA struct {
	// Off disables RDMA: blocks travel by other transports only.
	Off bool `yaml:"off,omitempty"`
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

// RDMADevice selects an RDMA device of a replica's host.
type RDMADevice struct {
	// Device is the device's name, as "cascade devices" lists it.
	Device string `yaml:"device,omitempty" default:"the nearest to the KV cache"`
	// Port is the device's port, 1 to 255.
	Port int `yaml:"port,omitempty" default:"the first active one"`
	// Address is the IP address of the port to use where the port has several, in
	// VLANs or of both families.
	Address string `yaml:"address,omitempty" default:"a routable one, IPv4 before IPv6"`
}

func (d RDMADevice) validate(c *checker, at string) {
	if d.Port != 0 {
		checkRange(c, at+".port", d.Port, 1, 255)
	}
	if len(d.Device) > 64 {
		c.fail(at+".device", "%d bytes; at most 64 are allowed", len(d.Device))
	}
	if d.Device == "" && (d.Port != 0 || d.Address != "") {
		c.fail(at+".device", "name the device to which port and address belong")
	}
	if d.Address != "" {
		if _, err := netip.ParseAddr(d.Address); err != nil {
			c.fail(at+".address", "%q is not an IP address", d.Address)
		}
	}
}
