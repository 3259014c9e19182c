package config

// ProxyLimits bound what one xDS node, which is a proxy or a gRPC client, may cost
// the control plane. A node that goes beyond one has that stream ended, is
// logged once a minute, and disturbs nobody else. Whoever goes over them by
// right, such as an Envoy with thousands of clusters of its own, wants them
// raised.
type ProxyLimits struct {
	// Streams are the most streams of a node at a time. 0 means 1024: an Envoy of
	// another owner has one for every stage cluster.
	Streams int `yaml:"streams,omitempty"`
	// StreamNames and NodeNames are the most resource names that one stream, and
	// all streams of a node, subscribe to at a time. 0 means 8192 and 16384.
	StreamNames int `yaml:"stream_names,omitempty"`
	NodeNames   int `yaml:"node_names,omitempty"`
	// Rate is how many requests a second a node may make beyond one reply to each
	// response, and Burst how many of them at once. 0 means 100 and 2048.
	Rate  int `yaml:"rate,omitempty"`
	Burst int `yaml:"burst,omitempty"`
	// Nodes are the most nodes at a time, those included that left within the last
	// minute. 0 means 16384.
	Nodes int `yaml:"nodes,omitempty"`
}

const (
	// maxLimit is above what any fleet needs, and far below what overflows.
	maxLimit = 1 << 24
	// minBurst is what one Envoy asks when it comes: listeners, clusters, routes,
	// estimators, and the endpoints of every stage.
	minBurst = 32
)

func (l ProxyLimits) validate(c *checker) {
	for _, f := range []struct {
		name string
		v    int
	}{
		{"streams", l.Streams}, {"stream_names", l.StreamNames}, {"node_names", l.NodeNames},
		{"rate", l.Rate}, {"burst", l.Burst}, {"nodes", l.Nodes},
	} {
		checkRange(c, "control.limits."+f.name, f.v, 0, maxLimit)
	}
	if l.NodeNames > 0 && l.StreamNames > l.NodeNames {
		c.fail("control.limits.stream_names", "%d is more than all streams of a node may have together, %d (node_names)", l.StreamNames, l.NodeNames)
	}
	if l.Burst > 0 && l.Burst < minBurst {
		c.fail("control.limits.burst", "%d: an Envoy that comes asks up to %d times at once", l.Burst, minBurst)
	}
}
