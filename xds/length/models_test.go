package length

import (
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/length"
)

func TestModelByHost(t *testing.T) {
	m, err := newModels([]Model{
		{Name: "a", Hosts: []string{"A.example.com", "shared.example.com", "*.a.example.com"}},
		{Name: "b", Hosts: []string{"b.example.com", "shared.example.com", "*.b.a.example.com", "*"}},
		{Name: "c"},
	})
	testkit.NoError(t, err)
	for authority, want := range map[string]string{
		"a.example.com":        "a",
		"A.Example.COM:8443":   "a",
		"b.example.com":        "b",
		"shared.example.com":   "",
		"x.a.example.com":      "a",
		"x.b.a.example.com:80": "b",
		".a.example.com":       "b", // a wildcard matches at least one character
		"elsewhere":            "b",
		"[::1]:80":             "b",
		"":                     "b",
	} {
		if got := m.byHost(authority); got != want {
			t.Errorf("the model of %q is %q, want %q", authority, got, want)
		}
	}
	if got := m.names["c"]; got != "c" {
		t.Errorf("the model c is %q", got)
	}
	if got := m.names["d"]; got != "" {
		t.Errorf("the model d is %q", got)
	}
}

func TestOnlyModelOwnsEveryHost(t *testing.T) {
	m, err := newModels([]Model{{Name: "a"}})
	if err != nil || m.byHost("[::1]:80") != "a" {
		t.Errorf("the only model is %q, %v", m.byHost("[::1]:80"), err)
	}
	m, err = newModels([]Model{{Name: "a", Hosts: []string{"*"}}, {Name: "b", Hosts: []string{"*"}}})
	if err != nil || m.byHost("x") != "" {
		t.Errorf("two models share *, but %q owns it, %v", m.byHost("x"), err)
	}
}

func TestConfigErrorsNameThePlace(t *testing.T) {
	ok := []Model{{Name: "m"}}
	for want, c := range map[string]Config{
		"Models is empty":                       {},
		"MaxBody is -1":                         {Models: ok, MaxBody: -1},
		"Deadline is -1ns":                      {Models: ok, Deadline: -1},
		"Models[0]: the name \"\" must":         {Models: []Model{{}}},
		"Models[0]: the name \"mmm":             {Models: []Model{{Name: strings.Repeat("m", length.MaxModel+1)}}},
		"Models[0]: the name \"a\\nb\" cannot":  {Models: []Model{{Name: "a\nb"}}},
		"Models[1]: the name \"m\" occurs":      {Models: []Model{{Name: "m"}, {Name: "m"}}},
		"Models[0]: the host \"a.*\" must":      {Models: []Model{{Name: "m", Hosts: []string{"a.*"}}}},
		"Models[0]: the host \"\" must":         {Models: []Model{{Name: "m", Hosts: []string{""}}}},
		"Models[0]: the host \"http://h\" must": {Models: []Model{{Name: "m", Hosts: []string{"http://h"}}}},
	} {
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

// TestAdapterNamesItsModel checks that a body may name a model by one of its adapters;
// an adapter of no configured model counts as unknown.
func TestAdapterNamesItsModel(t *testing.T) {
	bases := map[string]string{"sql": "a", "stray": "elsewhere"}
	s, err := New(Config{Models: []Model{{Name: "a"}, {Name: "b"}}, BaseOf: func(name string) string { return bases[name] }})
	testkit.NoError(t, err)
	for name, want := range map[string]string{"a": "a", "sql": "a", "b": "b", "stray": "", "none": "", "": ""} {
		if got := s.byName([]byte(name)); got != want {
			t.Errorf("%q names %q, want %q", name, got, want)
		}
	}
}
