package fleet

import (
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/store"
)

func TestNewRefuses(t *testing.T) {
	good := func() Config {
		return Config{Rules: testRules(""), Replicas: []policies.Replica{testReplica("r0")}, Store: store.New(store.NewMemory()), Publisher: new(plane)}
	}
	for _, c := range []struct {
		edit func(*Config)
		want string
	}{
		{func(c *Config) { c.Models = nil }, "models"},
		{func(c *Config) { c.Models[0].Name = "" }, "name"},
		{func(c *Config) { c.Models = append(c.Models, c.Models[0]) }, "twice"},
		{func(c *Config) { c.Models[0].Context = 0 }, "context"},
		{func(c *Config) { c.Models[0].Cost.D0 = 0 }, "cost"},
		{func(c *Config) { c.Models[0].BytesPerToken = 1 }, "bytes per token"},
		{func(c *Config) { c.Models[0].Edges = []policies.Tokens{1} }, "edges"},
		{func(c *Config) { c.Policy = "guess" }, "policy"},
		{func(c *Config) { c.Speed = -1 }, "speed"},
		{func(c *Config) { c.Period = -1 }, "period"},
		{func(c *Config) { c.Replicas = nil }, "no replica"},
		{func(c *Config) { c.Replicas[0].Address = "host:80" }, "IP address"},
		{func(c *Config) { c.Replicas[0].Model = "x" }, "no model"},
		{func(c *Config) { c.Store = nil }, "Store"},
		{func(c *Config) { c.Publisher = nil }, "Publisher"},
	} {
		cfg := good()
		c.edit(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want an error about %q, got %v", c.want, err)
		}
	}
	if _, err := New(good()); err != nil {
		t.Error(err)
	}
}
