package config

// ProxyLimits bound what one xDS node, a proxy or a gRPC client, may cost the
// control plane. A node that exceeds a limit loses that stream, is logged once a
// minute, and does not affect other nodes. Raise a limit for a node that exceeds
// it in normal operation, such as an Envoy with thousands of clusters of its own.
type ProxyLimits struct {
	// Streams is how many streams a node may have at a time. An Envoy of another
	// owner has one for every stage cluster.
	Streams int `yaml:"streams,omitempty" default:"1024"`
	// NodeNames is how many resource names all streams of a node may subscribe to
	// at a time.
	NodeNames int `yaml:"node_names,omitempty" default:"16384"`
	// Rate is how many requests a node may send beyond one reply to each response; those of 20 s may come at once.
	Rate int `yaml:"rate,omitempty" default:"100" unit:"requests per second"`
	// Nodes is how many nodes may be connected at a time, those included that
	// disconnected within the last minute.
	Nodes int `yaml:"nodes,omitempty" default:"16384"`
}

// maxLimit is above what any fleet needs, and far below what overflows.
const maxLimit = 1 << 24

func (l ProxyLimits) validate(c *checker) {
	for _, f := range []struct {
		name string
		v    int
	}{
		{"streams", l.Streams}, {"node_names", l.NodeNames},
		{"rate", l.Rate}, {"nodes", l.Nodes},
	} {
		checkRange(c, "control.limits."+f.name, f.v, 0, maxLimit)
	}
}
