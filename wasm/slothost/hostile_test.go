package slothost

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

// TestRefused checks that an invalid spec is refused with its reason and that no part
// of it is applied.
func TestRefused(t *testing.T) {
	c := config(t)
	c.Kinds = []abi.Kind{abi.Refine, abi.Select}
	c.Now = func() time.Time { return time.Unix(2000, 0) }
	s := testkit.Must(New(c))
	code := hosttest.LeastLoadModule()
	good := func(g lifecycle.Generation) lifecycle.Candidate { return candidate(t, g, lifecycle.ToShadow, code) }
	apply(t, s, want(good(50)))
	before := fmt.Sprint(s.Status())
	with := func(change func(*sign.Statement), keys ...byte) lifecycle.Candidate {
		st := hosttest.Statement(60, code, abi.Select)
		change(&st)
		c := good(60)
		c.Signature = signed(t, st, keys...)
		return c
	}
	but := func(change func(*lifecycle.Candidate)) lifecycle.Candidate {
		c := good(60)
		change(&c)
		return c
	}
	for name, test := range map[string]struct {
		want  lifecycle.SlotSpec
		error string
	}{
		"a kind of others":      {specOf(abi.Place, good(60)), "this host has no such slot"},
		"no kind":               {lifecycle.SlotSpec{Kind: "nonsense"}, "this host has no such slot"},
		"no signature file":     {want(but(func(c *lifecycle.Candidate) { c.Signature = nil })), "signature file"},
		"a long signature file": {want(but(func(c *lifecycle.Candidate) { c.Signature = make([]byte, 1<<20) })), "signature file"},
		"unsigned":              {want(with(func(*sign.Statement) {})), "signed by 0 keys"},
		"signed by a stranger":  {want(with(func(*sign.Statement) {}, 1)), "signed by 0 keys"},
		"changed after signing": {want(but(func(c *lifecycle.Candidate) {
			c.Signature = []byte(strings.Replace(string(c.Signature), "1.2.3", "9.9.9", 1))
		})), "changed after"},
		"another protocol":        {want(with(func(s *sign.Statement) { s.ABI = "cascade-policy/9" }, 0)), "built for"},
		"signed for another kind": {want(with(func(s *sign.Statement) { s.Grants[0].Kind = abi.Place }, 0)), "not signed for bid-select"},
		"replayed":                {want(good(49)), "older than"},
		"a number used twice": {want(but(func(c *lifecycle.Candidate) {
			c.Generation = 50
			c.Signature = signed(t, hosttest.Statement(50, code, abi.Select, abi.Place), 0)
		})), "taken by another"},
		"another generation":    {want(but(func(c *lifecycle.Candidate) { c.Generation = 61 })), "signed as generation 60"},
		"another name":          {want(but(func(c *lifecycle.Candidate) { c.Name = "nice" })), "not \"nice\""},
		"another version":       {want(but(func(c *lifecycle.Candidate) { c.Version = "2.0.0" })), "1.2.3, not"},
		"another hash":          {want(but(func(c *lifecycle.Candidate) { c.SHA256[0] = 1 })), "the statement is about module"},
		"another configuration": {want(but(func(c *lifecycle.Candidate) { c.Configuration = []byte("other") })), "signed without a configuration"},
		"descending":            {want(stable(t, 70, code), good(60)), "must ascend"},
		"no bytes":              {want(but(func(c *lifecycle.Candidate) { c.Module = []byte{} })), "do not have the digest"},
		"other bytes":           {want(but(func(c *lifecycle.Candidate) { c.Module = []byte("other") })), "do not have the digest"},
		"too many bytes":        {want(but(func(c *lifecycle.Candidate) { c.Module = make([]byte, maxModule+1) })), "at most"},
	} {
		for range 2 {
			err := s.Check(test.want)
			if err == nil || !strings.Contains(err.Error(), test.error) {
				t.Errorf("%s: %v, want %q", name, err, test.error)
			} else if again := s.Apply(test.want); again == nil || again.Error() != err.Error() {
				t.Errorf("%s: applied: %v", name, again)
			}
		}
	}
	testkit.NoError(t, s.Check(want(good(60))))
	s.record()
	if got := fmt.Sprint(s.Status()); got != before {
		t.Errorf("something happened:\n%s\n%s", before, got)
	}
	testkit.NoError(t, checkBytes(make([]byte, maxModule), lifecycle.Sum(make([]byte, maxModule))))
}

func TestConfigIsChecked(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"":                  func(c *Config) { c.Kinds = []abi.Kind{abi.Place, abi.Select} },
		"kinds: required":   func(c *Config) { c.Kinds = nil },
		"not a policy kind": func(c *Config) { c.Kinds = []abi.Kind{abi.Configure} },
		"is not a policy":   func(c *Config) { c.Kinds = []abi.Kind{abi.NumKinds} },
		"listed twice":      func(c *Config) { c.Kinds = []abi.Kind{abi.Select, abi.Select} },
		"no policy for":     func(c *Config) { c.Native.Selector = nil },
		"ring: ":            func(c *Config) { c.Ring = sign.Ring{} },
		"gates of bid-sel":  func(c *Config) { c.Gates[abi.Select].Ladder = []int{5, 4} },
	} {
		c := config(t)
		change(&c)
		_, err := New(c)
		testkit.WantError(t, err, want)
	}
}
