package links_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/links"
)

// full is a topology in which every field is set.
func full() links.Topology {
	return links.Topology{
		Host: "h", Known: true, CUDA: "c", Verbs: "v", PeerMemory: true, TCP: 1,
		RDMA: &links.Port{Name: "n", Layer: "l", Subnet: "s", Rate: 2, Distance: links.Switch},
		GPU: &links.GPU{
			Index: 1, UUID: "u", Address: "a", Absent: true, Lost: "x", MIG: true, Copy: 3, PCIe: 4, Switched: links.Bundle{Links: 5, Rate: 6},
			Peers: []links.Peer{{Index: 2, Address: "b", NVLinks: links.Bundle{Links: 7, Rate: 8}, Distance: links.System, Asked: true, Read: true, Write: true, NVLink: true}},
		},
	}
}

// visitFields calls visit with every field of a topology that is a value, and its name.
func visitFields(v reflect.Value, name string, visit func(name string, v reflect.Value)) {
	switch v.Kind() {
	case reflect.Pointer:
		visitFields(v.Elem(), name, visit)
	case reflect.Slice:
		for i := range v.Len() {
			visitFields(v.Index(i), name, visit)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			visitFields(v.Field(i), name+"."+v.Type().Field(i).Name, visit)
		}
	default:
		visit(name, v)
	}
}

// TestEqualFields changes every field of a topology once. All make another topology, and all but
// the host and a UUID beside an address another class.
func TestEqualFields(t *testing.T) {
	fields := 0
	visitFields(reflect.ValueOf(full()), "", func(name string, _ reflect.Value) {
		fields++
		s := full()
		visitFields(reflect.ValueOf(&s), "", func(other string, v reflect.Value) {
			if other != name {
				return
			}
			switch v.Kind() {
			case reflect.String:
				v.SetString(v.String() + "2")
			case reflect.Bool:
				v.SetBool(!v.Bool())
			case reflect.Uint8:
				v.SetUint(v.Uint() + 1)
			default:
				v.SetInt(v.Int() + 10)
			}
		})
		if s.Equal(full()) || full().Equal(s) {
			t.Errorf("another %s makes no other topology", name)
		}
		if alike := s.Class() == full().Class(); alike != (name == ".Host" || name == ".GPU.UUID") {
			t.Errorf("another %s is of the same class: %v", name, alike)
		}
	})
	if fields != 30 {
		t.Errorf("%d fields were changed", fields)
	}
	for name, edit := range map[string]func(s, o *links.Topology){
		"no GPU":                       func(s, _ *links.Topology) { s.GPU = nil },
		"no port":                      func(s, _ *links.Topology) { s.RDMA = nil },
		"no peer":                      func(s, _ *links.Topology) { s.GPU.Peers = nil },
		"another UUID, no address":     func(s, o *links.Topology) { s.GPU.Address, o.GPU.Address, s.GPU.UUID = "", "", "w" },
		"text of another field":        func(s, o *links.Topology) { s.CUDA, s.Verbs, o.CUDA, o.Verbs = "ab", "c", "a", "bc" },
		"a flag of another field":      func(s, o *links.Topology) { s.GPU.MIG, o.GPU.Absent = false, false },
		"a UUID beside an address":     func(s, _ *links.Topology) { s.GPU.UUID = "" },
		"only the index is known":      func(s, o *links.Topology) { s.Known, o.Known, s.GPU.Index = false, false, 9 },
		"known and not, nothing else":  func(s, o *links.Topology) { *s, *o = links.Topology{Host: "h"}, links.Topology{Host: "h", Known: true} },
		"one flag that doubles others": func(s, o *links.Topology) { s.GPU.Peers[0].Asked, o.GPU.Peers[0].Read = false, false },
	} {
		s, o := full(), full()
		if edit(&s, &o); s.Equal(o) {
			t.Errorf("%s: equal", name)
		}
	}
}

// TestFieldBounds sets every field to its bounds, and beyond them: bounds are valid, and a violation names the field.
func TestFieldBounds(t *testing.T) {
	check := func(name, what string, valid bool, set func(v reflect.Value)) {
		s := full()
		visitFields(reflect.ValueOf(&s), "", func(other string, v reflect.Value) {
			if other == name {
				set(v)
			}
		})
		if err := s.Validate(); (err == nil) != valid || !valid && !strings.Contains(err.Error(), ": "+strings.ToLower(name[1:])) {
			t.Errorf("%s of %s: %v", name, what, err)
		}
	}
	visitFields(reflect.ValueOf(full()), "", func(name string, v reflect.Value) {
		number := func(n int64, valid bool) {
			check(name, fmt.Sprint(n), valid, func(v reflect.Value) { v.SetInt(n) })
		}
		switch v.Interface().(type) {
		case string:
			most := links.MaxText
			if name == ".Host" {
				most = links.MaxName
			}
			check(name, "its bound", true, func(v reflect.Value) { v.SetString(strings.Repeat("x", most)) })
			check(name, "one byte more", false, func(v reflect.Value) { v.SetString(strings.Repeat("x", most+1)) })
		case links.Rate:
			number(0, true)
			number(1<<50, true)
			number(1<<50+1, false)
			number(-1, false)
		case links.Distance:
			check(name, "unknown", true, func(v reflect.Value) { v.SetUint(uint64(links.UnknownDistance)) })
			check(name, "no distance", false, func(v reflect.Value) { v.SetUint(uint64(links.UnknownDistance) + 1) })
		case int:
			least, most := int64(0), int64(1024)
			if strings.HasSuffix(name, "Index") {
				least, most = links.UnknownIndex, 1<<20
			}
			number(least, true)
			number(most, true)
			number(least-1, false)
			number(most+1, false)
		}
	})
	s := full()
	if s.GPU.Peers = make([]links.Peer, links.MaxPeers); s.Validate() != nil {
		t.Error("the most peers are too many")
	}
	s.GPU.Peers = append(s.GPU.Peers, links.Peer{})
	testkit.WantError(t, s.Validate(), "4: gpu.peers: more than 64")
}

// TestNames checks that every kind and distance is read as it is written, and that no other is.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for k := links.SameGPU; k <= links.TCP; k++ {
		var got links.Kind
		if err := got.UnmarshalText([]byte(k.String())); err != nil || got != k || seen[k.String()] || strings.HasPrefix(k.String(), "kind") {
			t.Errorf("kind %q is read as %q, error %v", k, got, err)
		}
		seen[k.String()] = true
	}
	for d := links.SameDevice; d <= links.UnknownDistance; d++ {
		var got links.Distance
		if err := got.UnmarshalText([]byte(d.String())); err != nil || got != d || seen[d.String()] || strings.HasPrefix(d.String(), "distance") {
			t.Errorf("distance %q is read as %q, error %v", d, got, err)
		}
		seen[d.String()] = true
	}
	for got, want := range map[string]string{
		links.Kind(0).String(): "kind 0", (links.TCP + 1).String(): "kind 8", links.Distance(0).String(): "distance 0", (links.UnknownDistance + 1).String(): "distance 8",
		links.Rate(0).String(): "unknown", links.Rate(-1).String(): "unknown", (25 * links.Gigabyte / 10).String(): "2.5 GB/s",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if new(links.Kind).UnmarshalText(nil) == nil || new(links.Distance).UnmarshalText([]byte("kind 0")) == nil {
		t.Error("a name of nothing is read")
	}
}
