package route

import (
	"fmt"
	"math"
	"net/http"
	"testing"

	"github.com/cascadeinfer/cascade/xds/client"
)

const tokens = "X-Cascade-Tokens"

// staged returns a virtual host with the ranges [0,100), [100,1000), [1000,∞) on a
// header, and a catch-all route.
func staged(header string) *client.VirtualHost {
	h := &client.VirtualHost{Name: "h", Domains: []string{"*"}}
	for i, r := range [][2]int64{{0, 100}, {100, 1000}, {1000, math.MaxInt64}} {
		h.Routes = append(h.Routes, &client.Route{Cluster: fmt.Sprintf("s%d", i), Path: "/",
			Headers: []client.HeaderMatch{{Name: header, Kind: client.MatchRange, Start: r[0], End: r[1]}}})
	}
	h.Routes = append(h.Routes, &client.Route{Cluster: "catch-all", Path: "/"})
	return h
}

// TestRangeMatch contains results that were measured on Envoy 1.40.0.
func TestRangeMatch(t *testing.T) {
	h := staged(tokens)
	for _, c := range []struct {
		lines []string
		want  string
	}{
		{[]string{"0"}, "s0"}, {[]string{"99"}, "s0"},
		{[]string{"100"}, "s1"}, {[]string{"999"}, "s1"},
		{[]string{"1000"}, "s2"}, {[]string{"9223372036854775806"}, "s2"},
		{nil, "catch-all"}, {[]string{""}, "catch-all"},
		{[]string{"9223372036854775807"}, "catch-all"},
		{[]string{"9223372036854775808"}, "catch-all"},
		{[]string{"99999999999999999999999"}, "catch-all"},
		{[]string{"007"}, "s0"}, {[]string{"00100"}, "s1"},
		{[]string{"+5"}, "s0"}, {[]string{"-0"}, "s0"}, {[]string{"-1"}, "catch-all"},
		{[]string{"abc"}, "catch-all"}, {[]string{"1e2"}, "catch-all"}, {[]string{"1.5"}, "catch-all"},
		{[]string{"0x10"}, "catch-all"}, {[]string{"1_000"}, "catch-all"},
		{[]string{" 50"}, "s0"}, {[]string{"50 "}, "s0"},
		{[]string{"1,2"}, "catch-all"}, {[]string{"1, 2"}, "catch-all"},
		// Several lines: any value in range matches, the first route wins.
		{[]string{"50", "2000"}, "s0"}, {[]string{"2000", "50"}, "s0"},
		{[]string{"abc", "50"}, "s0"}, {[]string{"50", "abc"}, "s0"},
		{[]string{"5000", "200"}, "s1"},
	} {
		r := &Request{Path: "/v1/completions", Header: http.Header{}}
		if c.lines != nil {
			r.Header[tokens] = c.lines
		}
		if got := Pick(h, r).Cluster; got != c.want {
			t.Errorf("%q → %s, Envoy says %s", c.lines, got, c.want)
		}
	}
}

// TestEmptyRanges checks that empty ranges, which Envoy accepts, match nothing.
func TestEmptyRanges(t *testing.T) {
	for _, r := range [][2]int64{{100, 100}, {100, 50}, {0, 0}} {
		m := client.HeaderMatch{Name: tokens, Kind: client.MatchRange, Start: r[0], End: r[1]}
		for _, v := range []string{"0", "50", "75", "100"} {
			if lineMatches(&m, v) {
				t.Errorf("[%d,%d) matches %s", r[0], r[1], v)
			}
		}
	}
}

func TestHeaderTests(t *testing.T) {
	header := http.Header{"A": {"x", "y"}, "Empty": {""}}
	for _, c := range []struct {
		m    client.HeaderMatch
		want bool
	}{
		{client.HeaderMatch{Name: "A", Kind: client.MatchExact, Exact: "y"}, true},
		{client.HeaderMatch{Name: "A", Kind: client.MatchExact, Exact: "x,y"}, false},
		{client.HeaderMatch{Name: "A", Kind: client.MatchExact, Exact: "Y"}, false},
		{client.HeaderMatch{Name: "A", Kind: client.MatchExact, Exact: "Y", FoldCase: true}, true},
		{client.HeaderMatch{Name: "A", Kind: client.MatchExact, Exact: "y", Invert: true}, false},
		{client.HeaderMatch{Name: "B", Kind: client.MatchExact, Exact: "y", Invert: true}, false},
		{client.HeaderMatch{Name: "A", Kind: client.MatchExact, Exact: "z", Invert: true}, true},
		{client.HeaderMatch{Name: "A", Kind: client.MatchPresent}, true},
		{client.HeaderMatch{Name: "Empty", Kind: client.MatchPresent}, true},
		{client.HeaderMatch{Name: "B", Kind: client.MatchPresent}, false},
		{client.HeaderMatch{Name: "B", Kind: client.MatchPresent, Invert: true}, true},
		{client.HeaderMatch{Name: ":method", Kind: client.MatchExact, Exact: "POST"}, true},
		{client.HeaderMatch{Name: ":authority", Kind: client.MatchExact, Exact: "h:1"}, true},
		{client.HeaderMatch{Name: ":path", Kind: client.MatchExact, Exact: "/p?q"}, true},
	} {
		if got := headerMatches(&c.m, &Request{Method: "POST", Authority: "h:1", Path: "/p", Target: "/p?q", Header: header}); got != c.want {
			t.Errorf("%+v holds: %v", c.m, got)
		}
	}
}

func TestPaths(t *testing.T) {
	h := &client.VirtualHost{Routes: []*client.Route{
		{Cluster: "exact", Path: "/v1/models", Exact: true},
		{Cluster: "fold", Path: "/Health", FoldCase: true},
		{Cluster: "prefix", Path: "/v1"},
	}}
	for path, want := range map[string]string{"/v1/models": "exact", "/v1/models/x": "prefix", "/v1": "prefix", "/healthz": "fold", "/other": ""} {
		got := ""
		if r := Pick(h, &Request{Path: path}); r != nil {
			got = r.Cluster
		}
		if got != want {
			t.Errorf("%s → %q, want %q", path, got, want)
		}
	}
}

func TestHosts(t *testing.T) {
	table := &client.RouteTable{IgnorePort: true}
	for _, d := range []string{"a.b", "*.b", "*.a.b", "a.*", "a.b.*", "*"} {
		table.Hosts = append(table.Hosts, &client.VirtualHost{Name: d, Domains: []string{d}})
	}
	full := NewTable(table)
	for host, want := range map[string]string{
		"a.b": "a.b", "A.B:8080": "a.b", "x.b": "*.b", "x.a.b": "*.a.b", ".b": "*", "a.c": "a.*", "a.b.c": "a.b.*", "z": "*", "": "*", "[::1]:80": "*",
	} {
		if got := full.Host(host); got == nil || got.Name != want {
			t.Errorf("%q → %v, want %s", host, got, want)
		}
	}
	table.Hosts = table.Hosts[:1]
	if got := NewTable(table).Host("z"); got != nil {
		t.Errorf("no host matches z, got %s", got.Name)
	}
	table.IgnorePort = false
	if got := NewTable(table).Host("a.b:80"); got != nil {
		t.Error("the port is part of the name here")
	}
}

func TestWithoutPort(t *testing.T) {
	for in, want := range map[string]string{"a:1": "a", "a": "a", "[::1]": "[::1]", "[::1]:1": "[::1]", "": ""} {
		if got := WithoutPort(in); got != want {
			t.Errorf("%q → %q", in, got)
		}
	}
}

func BenchmarkPick(b *testing.B) {
	h := staged(tokens)
	r := &Request{Path: "/v1/completions", Header: http.Header{tokens: {"70000"}}}
	b.ReportAllocs()
	for b.Loop() {
		Pick(h, r)
	}
}
