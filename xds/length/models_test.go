package length

import (
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/length"
)

// TestModelByHost checks that host names select models here as for the other data planes
// (resources.Routing.ByHost), in any case.
func TestModelByHost(t *testing.T) {
	two := []Model{{Name: "a", Hosts: []string{"A.example.com", "*.a.example.com", "llm.*"}}, {Name: "b", Hosts: []string{"b.example.com"}}}
	for authority, want := range map[string]string{
		"A.Example.COM:8443": "a", "b.example.com": "b", "x.a.example.com:80": "a", "llm.test": "a", "elsewhere": "", "[::1]:80": "", "": "",
	} {
		if got := testkit.Must(New(Config{Models: two})).byHost(authority); got != want {
			t.Errorf("the model of %q is %q, want %q", authority, got, want)
		}
	}
	if got := testkit.Must(New(Config{Models: two[1:]})).byHost("[::1]:80"); got != "b" {
		t.Errorf("the only model is %q", got)
	}
}

func TestConfigErrorsNameThePlace(t *testing.T) {
	ok := []Model{{Name: "m"}}
	for want, c := range map[string]Config{
		"Models is empty":                      {},
		"MaxBody is -1":                        {Models: ok, MaxBody: -1},
		"Deadline is -1ns":                     {Models: ok, Deadline: -1},
		"Models[0]: the name \"\" must":        {Models: []Model{{}}},
		"Models[0]: the name \"mmm":            {Models: []Model{{Name: strings.Repeat("m", length.MaxModel+1)}}},
		"Models[0]: the name \"a\\nb\" cannot": {Models: []Model{{Name: "a\nb"}}},
		"Models[0]: a host name":               {Models: []Model{{Name: "m", Hosts: []string{""}}}},
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
	s := testkit.Must(New(Config{Models: []Model{{Name: "a"}, {Name: "b"}}, BaseOf: func(name string) string { return bases[name] }}))
	for name, want := range map[string]string{"a": "a", "sql": "a", "b": "b", "stray": "", "none": "", "": ""} {
		if got := s.byName(name); got != want {
			t.Errorf("%q names %q, want %q", name, got, want)
		}
	}
}
