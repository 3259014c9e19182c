package config

// ProxyLimits bound what one xDS node, a proxy or a gRPC client, may cost the
// control plane. A node that exceeds a limit loses that stream, is logged once a
// minute, and does not affect other nodes. Raise a limit for a node that exceeds
// it in normal operation, such as an Envoy with thousands of clusters of its own.
type ProxyLimits struct {
	// Streams is how many streams a node may have at a time. An Envoy of another
	// owner has one for every stage cluster.
	Streams int `yaml:"streams,omitempty" default:"1024"`
	// StreamNames is how many resource names one stream may subscribe to at a time.
	StreamNames int `yaml:"stream_names,omitempty" default:"8192"`
	// NodeNames is how many resource names all streams of a node may subscribe to
	// at a time.
	NodeNames int `yaml:"node_names,omitempty" default:"16384"`
	// Rate is how many requests a node may send beyond one reply to each response.
	Rate int `yaml:"rate,omitempty" default:"100" unit:"requests per second"`
	// Burst is how many such requests a node may send at once.
	Burst int `yaml:"burst,omitempty" default:"2048" unit:"requests"`
	// Nodes is how many nodes may be connected at a time, those included that
	// disconnected within the last minute.
	Nodes int `yaml:"nodes,omitempty" default:"16384"`
}

const (
	// maxLimit is above what any fleet needs, and far below what overflows.
	maxLimit = 1 << 24
	// minBurst is how many requests one Envoy sends when it connects: for listeners,
	// clusters, routes, estimators, and the endpoints of every stage.
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
		c.fail("control.limits.stream_names", "%d exceeds node_names, the limit of all streams of a node together: %d", l.StreamNames, l.NodeNames)
	}
	if l.Burst > 0 && l.Burst < minBurst {
		c.fail("control.limits.burst", "%d: an Envoy sends up to %d requests at once when it connects", l.Burst, minBurst)
	}
}
