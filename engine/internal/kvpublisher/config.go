package kvpublisher

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/internal/strictjson"
)

// Config is vLLM's --kv-events-config. The zero value of each number and of Endpoint is vLLM's default.
type Config struct {
	Enable bool `json:"enable_kv_cache_events"`
	// Publisher is "zmq", or "null" to publish nothing. "" means zmq.
	Publisher string `json:"publisher"`
	// Endpoint is the address of the PUB socket. As with vLLM, it listens if the address has a "*" or
	// "::", and otherwise connects to a subscriber that listens. Other than with vLLM, "*" is
	// 127.0.0.1, and "::" alone is ::1. "" means tcp://*:5557.
	Endpoint string `json:"endpoint"`
	// ReplayEndpoint is the address on which the ROUTER socket listens. "" means that there is none.
	ReplayEndpoint string `json:"replay_endpoint"`
	BufferSteps    int    `json:"buffer_steps"`   // batches that can be replayed; 0 means 10,000
	HighWater      int    `json:"hwm"`            // batches that wait for one subscriber; 0 means 100,000
	MaxQueue       int    `json:"max_queue_size"` // batches that wait to be sent before the engine waits; 0 means 100,000
	Topic          string `json:"topic"`          // first frame of every message
}

// Defaults and limits.
const (
	defaultEndpoint = "tcp://*:5557"
	defaultBuffer   = 10_000
	defaultHigh     = 100_000
	defaultQueue    = 100_000
	maxBatches      = 1 << 20 // of any of these
	maxTopic        = 255     // bytes
)

// ParseConfig decodes the JSON of vLLM's --kv-events-config. It refuses fields that vLLM does not have.
func ParseConfig(text string) (Config, error) {
	c := Config{BufferSteps: defaultBuffer, HighWater: defaultHigh, MaxQueue: defaultQueue}
	err := strictjson.Unmarshal([]byte(text), &c)
	if err == nil && min(c.BufferSteps, c.HighWater, c.MaxQueue) < 1 {
		err = errors.New("buffer_steps, hwm and max_queue_size must be positive")
	}
	if err == nil {
		c = c.withDefaults()
		err = c.Validate()
	}
	if err != nil {
		return Config{}, fmt.Errorf("KV events config: %w", err)
	}
	return c, nil
}

// Enabled reports whether events are published.
func (c Config) Enabled() bool { return c.Enable && c.Publisher != "null" }

func (c Config) withDefaults() Config {
	c.Publisher = cmp.Or(c.Publisher, "zmq")
	c.Endpoint = cmp.Or(c.Endpoint, defaultEndpoint)
	c.BufferSteps = cmp.Or(c.BufferSteps, defaultBuffer)
	c.HighWater = cmp.Or(c.HighWater, defaultHigh)
	c.MaxQueue = cmp.Or(c.MaxQueue, defaultQueue)
	return c
}

// Validate checks a config. Its error names the field.
func (c Config) Validate() error {
	c = c.withDefaults()
	if c.Publisher != "zmq" && c.Publisher != "null" {
		return fmt.Errorf("publisher: %q: must be zmq or null", c.Publisher)
	}
	if n := min(c.BufferSteps, c.HighWater, c.MaxQueue); n < 0 {
		return fmt.Errorf("buffer_steps, hwm and max_queue_size must be positive, not %d", n)
	}
	if n := max(c.BufferSteps, c.HighWater, c.MaxQueue); n > maxBatches {
		return fmt.Errorf("buffer_steps, hwm and max_queue_size must be at most %d, not %d", maxBatches, n)
	}
	if len(c.Topic) > maxTopic {
		return fmt.Errorf("topic: must have at most %d bytes, not %d", maxTopic, len(c.Topic))
	}
	if _, err := address(c.Endpoint); err != nil {
		return fmt.Errorf("endpoint: %w", err)
	}
	if _, err := address(c.ReplayEndpoint); c.ReplayEndpoint != "" && err != nil {
		return fmt.Errorf("replay_endpoint: %w", err)
	}
	return nil
}

// listens reports whether a PUB socket listens at an endpoint.
func listens(endpoint string) bool {
	return strings.Contains(endpoint, "*") || strings.Contains(endpoint, "::")
}

// address returns the host and port of an endpoint.
func address(endpoint string) (string, error) {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", fmt.Errorf("%q: must begin with tcp://, the only transport of an emulated engine", endpoint)
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return "", fmt.Errorf("%q: %w", endpoint, err)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", fmt.Errorf("%q: the port must be a number below 65536", endpoint)
	}
	switch host {
	case "*":
		host = "127.0.0.1"
	case "::":
		host = "::1"
	case "":
		return "", fmt.Errorf("%q: names no host", endpoint)
	}
	return net.JoinHostPort(host, port), nil
}
