package config

import (
	"net"
	"strconv"
	"strings"
)

// KVEvents are the KV events of an engine, by which its migrator knows which prompts the engine
// has cached: the values that the engine's --kv-events-config has under the same names. The
// events contain the token ids of prompts, so they stay on loopback.
type KVEvents struct {
	// Endpoint is tcp://127.0.0.1:PORT, to which the engine connects and where the migrator
	// listens; or tcp://*:PORT, where the engine listens on every address of the host, so that
	// a firewall must close the port. Every engine needs one of its own.
	Endpoint string `yaml:"endpoint,omitempty"`
	// ReplayEndpoint is where the engine serves past events: tcp://127.0.0.1:PORT, or
	// tcp://*:PORT. Without it, what was cached before the migrator began to listen, and what
	// an event that was lost has said, is unknown until it is cached again.
	ReplayEndpoint string `yaml:"replay_endpoint,omitempty"`
	// Topic is that of the engine's events; those of other topics are ignored.
	Topic string `yaml:"topic,omitempty"`
}

// Enabled reports whether the engine publishes events.
func (e KVEvents) Enabled() bool { return e != KVEvents{} }

// Listens reports whether the engine listens at Endpoint, so that the migrator connects to it.
func (e KVEvents) Listens() bool { return strings.HasPrefix(e.Endpoint, anyAddress) }

// Address returns host:port of Endpoint as the migrator uses it.
func (e KVEvents) Address() string { return loopbackAddress(e.Endpoint) }

// ReplayAddress returns host:port of ReplayEndpoint as the migrator uses it, "" for none.
func (e KVEvents) ReplayAddress() string { return loopbackAddress(e.ReplayEndpoint) }

const (
	tcpScheme  = "tcp://"
	anyAddress = tcpScheme + "*:"
)

// loopbackAddress returns host:port of an endpoint, with 127.0.0.1 in place of every address.
func loopbackAddress(endpoint string) string {
	if port, ok := strings.CutPrefix(endpoint, anyAddress); ok {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return strings.TrimPrefix(endpoint, tcpScheme)
}

// maxTopic is the size of a topic in bytes.
const maxTopic = 255

// validate checks the events of one replica. taken has the addresses of other fields.
func (e KVEvents) validate(c *checker, at string, taken listeners) {
	if !e.Enabled() {
		return
	}
	for _, f := range [...]struct {
		name, value string
		required    bool
	}{{"endpoint", e.Endpoint, true}, {"replay_endpoint", e.ReplayEndpoint, false}} {
		if f.value == "" && !f.required {
			continue
		}
		path := at + "." + f.name
		host, port, err := net.SplitHostPort(loopbackAddress(f.value))
		number, bad := strconv.ParseUint(port, 10, 16)
		switch {
		case !strings.HasPrefix(f.value, tcpScheme) || err != nil || bad != nil || number == 0:
			c.fail(path, "%q: must be as in the engine's --kv-events-config, for instance tcp://127.0.0.1:5557", f.value)
			continue
		case !isLoopback(host):
			c.fail(path, "%s is not loopback, and the events contain users' prompts: use tcp://127.0.0.1:%s", f.value, port)
			continue
		}
		taken.claim(c, path, net.JoinHostPort(host, port))
	}
	if len(e.Topic) > maxTopic {
		c.fail(at+".topic", "%d bytes exceed the limit of %d", len(e.Topic), maxTopic)
	}
}
