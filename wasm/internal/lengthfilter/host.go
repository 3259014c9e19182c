package lengthfilter

import (
	"errors"
	"strconv"

	"github.com/cascadeinfer/cascade/policies/length"
)

// Config is the module's configuration, in JSON in the proxy's configuration.
type Config struct {
	// ReadBody lets the filter hold a request until its body is complete. It is
	// needed for requests without a size, and for hosts of several models. The proxy
	// must allow a filter to stop at the headers (allow_on_headers_stop_iteration),
	// otherwise such requests hang; therefore it is off by default, and such requests
	// are routed like requests without an estimate.
	ReadBody bool `json:"read_body"`
	// MaxBody bounds the bodies that the filter reads, in bytes. It must not exceed what
	// the proxy's routes buffer. 0 means length.BodyLimit.
	MaxBody int64 `json:"max_body"`
	// Models are the models of hosts whose route table lists none, such as those of
	// another control plane. If there is only one, bodies are not needed to know it.
	Models []Model `json:"models"`
}

// Model is a model that a host serves.
type Model struct {
	// Name is the model's name, which routes match on.
	Name string `json:"model"`
	// BytesPerToken is the model's ratio of bytes to tokens; 0 means
	// length.DefaultRatio.
	BytesPerToken float64 `json:"bytes_per_token"`
	// Adapters are other names under which requests address the model.
	Adapters []string `json:"adapters"`
}

func (c *Config) validate() error {
	if c.MaxBody == 0 {
		c.MaxBody = length.BodyLimit
	}
	if c.MaxBody < 0 {
		return errors.New("max_body: want a number of bytes, or 0 for 16 MiB")
	}
	for i, m := range c.Models {
		if err := m.validate(); err != nil {
			return at("models["+strconv.Itoa(i)+"]", err)
		}
	}
	return nil
}

// validate checks the values that the filter writes into headers.
func (m Model) validate() error {
	if m.Name == "" || len(m.Name) > length.MaxModel {
		return errors.New("the name must have 1 to 256 bytes")
	}
	for i := range len(m.Name) {
		if m.Name[i] < ' ' || m.Name[i] == 0x7f {
			return errors.New("the name has a control character, which no header can hold")
		}
	}
	return nil
}

// model is a Model prepared for requests.
type model struct {
	name      string
	estimator length.Estimator
}

// host holds the models of a virtual host.
type host struct {
	models []model
	names  map[string]int // index of the model with that name or adapter
}

func newHost(list []Model) *host {
	h := &host{names: make(map[string]int, len(list))}
	for i, m := range list {
		h.models = append(h.models, model{m.Name, length.Estimator{BytesPerToken: length.RatioOf(m.BytesPerToken)}})
		for _, a := range m.Adapters {
			if _, taken := h.names[a]; !taken {
				h.names[a] = i
			}
		}
	}
	for i, m := range list {
		h.names[m.Name] = i // a model's name has priority over adapters
	}
	return h
}

// only returns the model of a host that serves exactly one, else nil.
func (h *host) only() *model {
	if len(h.models) == 1 {
		return &h.models[0]
	}
	return nil
}

// byName returns the model with a name or adapter, or nil.
func (h *host) byName(name []byte) *model {
	if i, ok := h.names[string(name)]; ok {
		return &h.models[i]
	}
	return nil
}
