package config

const (
	usualReplicaBodies = 256  // MiB
	usualProxyBodies   = 512  // MiB
	usualBodyRate      = 3277 // bytes per second
	// A front end must have room for two bodies of the largest size, a proxy for one.
	minReplicaBodies = 32
	minProxyBodies   = 16
	maxBodies        = 1 << 20 // MiB
	maxBodyRate      = 1 << 20 // bytes per second
)

// Bodies bounds what the bodies of requests cost one process while they arrive or wait. A
// request that has no room is refused with 503, which proxies retry at another replica.
// Raise the memory for many long prompts at once, and lower it on small hosts. A body has
// 16 MiB at most.
type Bodies struct {
	// Replica is the memory of a migrator's front end for requests of clients, 32 to 2^20;
	// requests that other replicas send have as much again.
	Replica int `yaml:"replica,omitempty" default:"256" unit:"MiB"`
	// Proxy is the memory of an embedded proxy, 16 to 2^20. Envoys are bounded by their own
	// overload manager.
	Proxy int `yaml:"proxy,omitempty" default:"512" unit:"MiB"`
	// Rate is the slowest rate at which a body may arrive, 1 to 2^20: one that brings less
	// in 10 s ends with 408. Lower it for clients with worse connections.
	Rate int `yaml:"rate,omitempty" default:"3277" unit:"bytes per second"`
}

func (b *Bodies) setDefaults() {
	setDefault(&b.Replica, usualReplicaBodies)
	setDefault(&b.Proxy, usualProxyBodies)
	setDefault(&b.Rate, usualBodyRate)
}

func (b Bodies) validate(c *checker) {
	checkRange(c, "bodies.replica", b.Replica, minReplicaBodies, maxBodies)
	checkRange(c, "bodies.proxy", b.Proxy, minProxyBodies, maxBodies)
	checkRange(c, "bodies.rate", b.Rate, 1, maxBodyRate)
}
