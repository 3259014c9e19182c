package lengthfilter

import (
	"errors"
	"strconv"

	"github.com/cascadeinfer/cascade/policies/length"
)

// DefaultMaxBody is the buffer limit of Cascade's listener: its proxies hold no
// larger body.
const DefaultMaxBody = 16 << 20

// Config is what the proxy's configuration says to the module, in JSON.
type Config struct {
	// ReadBody lets the filter hold a request until its body is there: without
	// a size, or on a host of several models, nothing else tells where it belongs.
	// The proxy must let a filter stop the headers alone
	// (allow_on_headers_stop_iteration), or such requests hang. That is why it is
	// off unless said; those requests then go where requests without an estimate go.
	ReadBody bool `json:"read_body"`
	// MaxBody is the largest body that is read, in bytes. It must not exceed the
	// buffer limit of the proxy's listener. 0 means DefaultMaxBody.
	MaxBody int64 `json:"max_body"`
	// Models are those of hosts whose route table says nothing, as those of
	// another control plane do. One model needs no look into bodies to be known.
	Models []Model `json:"models"`
}

// Model is one model that a host serves.
type Model struct {
	// Name is the model's own, which routes match on.
	Name string `json:"model"`
	// BytesPerToken is the model's ratio; 0 means length.DefaultRatio.
	BytesPerToken float64 `json:"bytes_per_token"`
	// Adapters are further names by which requests ask for the model.
	Adapters []string `json:"adapters"`
}

func (c *Config) validate() error {
	if c.MaxBody == 0 {
		c.MaxBody = DefaultMaxBody
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

// validate checks what ends up in a header.
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

// model is a model as requests meet it.
type model struct {
	name      string
	estimator length.Estimator
}

// host is the models of a virtual host.
type host struct {
	models []model
	names  map[string]int // index of the model that answers to a name
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
		h.names[m.Name] = i // a model's own name is nobody's adapter
	}
	return h
}

// only returns the model of a host that serves no other.
func (h *host) only() *model {
	if len(h.models) == 1 {
		return &h.models[0]
	}
	return nil
}

// byName returns the model that answers to a name, or nil.
func (h *host) byName(name []byte) *model {
	if i, ok := h.names[string(name)]; ok {
		return &h.models[i]
	}
	return nil
}
