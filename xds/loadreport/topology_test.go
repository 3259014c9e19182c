package loadreport_test

import (
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// full is a topology in which nothing is zero.
func full() links.Topology {
	return links.Topology{
		Host: "a", Known: true, CUDA: "no", Verbs: "nor", PeerMemory: true, TCP: 5,
		GPU: &links.GPU{
			Index: 3, UUID: "u", Address: "g", Absent: true, Lost: "l", MIG: true, Copy: 6, PCIe: 7, Switched: links.Bundle{Links: 18, Rate: 8},
			Peers: []links.Peer{
				{Index: -1, Address: "h", NVLinks: links.Bundle{Links: 4, Rate: 9}, Distance: links.System, Asked: true, Read: true, Write: true, NVLink: true},
				{Index: 5},
			},
		},
		RDMA: &links.Port{Name: "mlx5_0", Layer: "InfiniBand", Subnet: "s", Rate: 10, Distance: links.Switch},
	}
}

func TestRoundTrip(t *testing.T) {
	for _, want := range []links.Topology{{}, {Host: "a"}, full()} {
		if got, err := loadreport.DecodeTopology(loadreport.EncodeTopology(want)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v became %+v, %v", want, got, err)
		}
	}
	for i := range reflect.TypeFor[links.Topology]().NumField() {
		if reflect.ValueOf(full()).Field(i).IsZero() {
			t.Errorf("the full topology lacks %s", reflect.TypeFor[links.Topology]().Field(i).Name)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	for want, edit := range map[string]func(*api.Topology){
		"exceeds the limit": func(m *api.Topology) { m.Cuda = strings.Repeat("x", loadreport.MaxTopologyBytes) },
		"host":              func(m *api.Topology) { m.Host = strings.Repeat("x", 300) },
		"gpu.index":         func(m *api.Topology) { m.Gpu.Index = -2 },
		"gpu.peers":         func(m *api.Topology) { m.Gpu.Peers = make([]*api.TopologyPeer, 65) },
		"tcp":               func(m *api.Topology) { m.Tcp = -1 },
	} {
		m := loadreport.EncodeTopology(full())
		edit(m)
		if _, err := loadreport.DecodeTopology(m); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	// What a later version knows better is taken for far.
	m := loadreport.EncodeTopology(full())
	m.Rdma.Distance = 99
	if s, err := loadreport.DecodeTopology(m); err != nil || s.RDMA.Distance != links.UnknownDistance {
		t.Errorf("%+v, %v", s.RDMA, err)
	}
}

// FuzzDecode: whatever is decoded is valid, goes round, and has a way to itself and
// to another.
func FuzzDecodeTopology(f *testing.F) {
	for _, s := range []links.Topology{{}, {Host: "a"}, full()} {
		b := testkit.Must(proto.Marshal(loadreport.EncodeTopology(s)))
		f.Add(b)
	}
	other := full()
	other.Host = "b"
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(api.Topology)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		s, err := loadreport.DecodeTopology(m)
		if err != nil {
			return
		}
		testkit.NoError(t, s.Validate())
		again, err := loadreport.DecodeTopology(loadreport.EncodeTopology(s))
		if err != nil || !again.Equal(s) || again.Class() != s.Class() {
			t.Fatalf("%+v became %+v, %v", s, again, err)
		}
		for _, o := range []links.Topology{s, full(), other} {
			if w := (links.Rates{}).BestPath(s, o); w.Closed || w.Rate <= 0 {
				t.Fatalf("%+v", w)
			}
		}
	})
}
