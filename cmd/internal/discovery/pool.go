package discovery

import (
	"net/netip"
	"slices"
)

// PoolEndpoints returns where the Pods of an InferencePool serve: each port of the pool at each
// Pod that is ready and does not terminate, sorted. These are the endpoints that a picker of the
// Gateway API Inference Extension may choose.
func (c Cluster) PoolEndpoints() []netip.AddrPort {
	var out []netip.AddrPort
	for _, pod := range c.Pods {
		ip, err := netip.ParseAddr(pod.IP)
		if err != nil || !pod.Ready || pod.gateClosed() || pod.Terminating || pod.Ended {
			continue
		}
		for _, port := range c.PoolPorts {
			out = append(out, netip.AddrPortFrom(ip.Unmap(), port))
		}
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return slices.Compact(out)
}
