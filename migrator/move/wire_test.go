package move

import (
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/peer"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// full returns a message of a kind with every field set.
func full(k Kind) Message {
	m := Message{Kind: k, From: "b", To: "a", Deal: bidask.Deal{Seller: "b/x", Number: 7}, Round: 3, Failure: PeerTimeout, Epoch: 9, Request: "f/1", FrontEnd: "f", Target: "a",
		Mode: Live, Engine: KVFormat{Fingerprint: 1 << 63, BlockTokens: 16}, VersionMin: 1, VersionMax: 2, Transports: []string{"shm", "tcp"},
		Offers: []transport.Offer{{Transport: "tcp", Address: "host:1", Ticket: [transport.TicketSize]byte{1, 2, 15: 9}, Source: "b"}},
		Span:   Span{From: 32, Computed: 99, Length: 100, Generation: 4, Hash: 1<<64 - 1, Cached: 16}, Stall: 31_000,
		Connector: engineinfo.KVConnector{Presence: engineinfo.Present, Name: "nixl", Version: "0.32.0", Layout: "block_size=16"}, TargetConnector: engineinfo.KVConnector{Presence: engineinfo.Absent}, EngineBusy: true}
	if k == Round || k == Manifest {
		m.Table = &Table{IDs: []uint32{1, 2}, Blocks: []uint32{3}, Sums: []uint32{4, 5}}
	}
	return m
}

func TestWireKeepsEverything(t *testing.T) {
	for k := Open; k <= Abort; k++ {
		want := full(k)
		b := testkit.Must(proto.Marshal(encode(want)))
		var wire api.Transfer
		testkit.NoError(t, proto.Unmarshal(b, &wire))
		got, err := decode("b", "a", &wire)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%v: %v\n%+v, want\n%+v", k, err, got, want)
		}
	}
}

// The executor's limit for one message is the network's limit.
func TestEnvelope(t *testing.T) {
	if defaultEnvelope != peer.MaxEnvelope {
		t.Errorf("%d bytes, and the network carries %d", defaultEnvelope, peer.MaxEnvelope)
	}
}

func TestWireRefusesNonsense(t *testing.T) {
	long := encode(full(Committed))
	long.StallMicros = 1 << 63
	if m, err := decode("b", "a", long); err != nil || m.Stall != maxStall {
		t.Errorf("a stall of 2⁶³ µs is read as %d, %v", m.Stall, err)
	}
	odd := encode(full(Commit))
	odd.Connector.Presence, odd.Connector.Name, odd.TargetConnector = 1<<31, strings.Repeat("é", engineinfo.MaxConnectorText)+"x", nil
	odd.Connector.Layout = "\xff"
	want := engineinfo.KVConnector{Version: "0.32.0", Name: strings.Repeat("é", engineinfo.MaxConnectorText/2)}
	if m, err := decode("b", "a", odd); err != nil || m.Connector != want || m.TargetConnector != (engineinfo.KVConnector{}) {
		t.Errorf("an odd connector is read as %+v and %+v, %v", m.Connector, m.TargetConnector, err)
	}
	for name, spoil := range map[string]func(*api.Transfer){
		"no seller":       func(t *api.Transfer) { t.Seller = "" },
		"large kind":      func(t *api.Transfer) { t.Kind = 256 },
		"large way":       func(t *api.Transfer) { t.Mode = 1 << 20 },
		"large why":       func(t *api.Transfer) { t.Failure = 257 },
		"short ticket":    func(t *api.Transfer) { t.Offers[0].Ticket = t.Offers[0].Ticket[1:] },
		"many offers":     func(t *api.Transfer) { t.Offers = make([]*api.Offer, 17) },
		"many transports": func(t *api.Transfer) { t.Transports = make([]string, maxTransports+1) },
	} {
		wire := encode(full(Accept))
		spoil(wire)
		if _, err := decode("b", "a", wire); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// FuzzDecode decodes any bytes as a message, and plans a pull from any message.
func FuzzDecode(f *testing.F) {
	for k := Open; k <= Abort; k++ {
		b := testkit.Must(proto.Marshal(encode(full(k))))
		f.Add(b)
	}
	memory := &transport.Memory{Layout: transport.Layout{Blocks: 8, Regions: []transport.Region{{Stride: 8, Bytes: 8}, {Offset: 64, Stride: 8, Bytes: 8}}}, Bytes: make([]byte, 128)}
	f.Fuzz(func(t *testing.T, b []byte) {
		var wire api.Transfer
		if proto.Unmarshal(b, &wire) != nil {
			return
		}
		m, err := decode("b", "a", &wire)
		if err != nil {
			return
		}
		if again, err := decode("b", "a", encode(m)); err != nil || again.Span != m.Span || again.Deal != m.Deal {
			t.Fatalf("%+v is written as another: %+v, %v", m, again, err)
		}
		in := &importJob{blocks: []uint32{5, 6, 7}, blockTokens: 4, memory: memory}
		for _, last := range []bool{false, true} {
			plan, _, err := in.planPull(Action{Span: m.Span, Table: m.Table, Last: last})
			if err == nil && plan.Validate(transport.Layout{Blocks: 1 << 40, Regions: memory.Regions}, memory.Layout) != nil {
				t.Fatalf("%+v gives the plan %+v", m, plan)
			}
		}
	})
}

func TestPlanRefusesNonsense(t *testing.T) {
	memory := &transport.Memory{Layout: transport.Layout{Blocks: 8, Regions: []transport.Region{{Stride: 8, Bytes: 8}}}, Bytes: make([]byte, 64)}
	good := func() (*importJob, Action) {
		in := &importJob{blocks: []uint32{5, 6, 7}, blockTokens: 4, memory: memory}
		in.hash = in.hash.Extend(1, 2, 3, 4)
		a := Action{Last: true, Span: Span{From: 4, Computed: 9, Length: 10, Hash: in.hash.Extend(5, 6, 7, 8, 9, 10)},
			Table: &Table{IDs: []uint32{5, 6, 7, 8, 9, 10}, Blocks: []uint32{0, 1}, Sums: []uint32{8, 9}}}
		return in, a
	}
	in, a := good()
	plan, hash, err := in.planPull(a)
	if want := (transport.Plan{Src: []uint32{0, 1}, Dst: []uint32{6, 7}, Sums: []uint32{8, 9}}); err != nil || hash != a.Span.Hash || !reflect.DeepEqual(plan, want) {
		t.Fatalf("plan %+v, %v", plan, err)
	}
	for name, spoil := range map[string]func(*importJob, *Action){
		"no table":        func(_ *importJob, a *Action) { a.Table = nil },
		"position":        func(_ *importJob, a *Action) { a.Span.From = 5 },
		"id missing":      func(_ *importJob, a *Action) { a.Table.IDs = a.Table.IDs[1:] },
		"other id":        func(_ *importJob, a *Action) { a.Table.IDs[0]++ },
		"other past":      func(in *importJob, _ *Action) { in.hash++ },
		"block missing":   func(_ *importJob, a *Action) { a.Table.Blocks = a.Table.Blocks[1:] },
		"sum missing":     func(_ *importJob, a *Action) { a.Table.Sums = a.Table.Sums[1:] },
		"small":           func(in *importJob, _ *Action) { in.blocks = in.blocks[:2] },
		"computed beyond": func(_ *importJob, a *Action) { a.Span.Computed = 11 },
		"computed before": func(_ *importJob, a *Action) { a.Span.Computed = 3 },
	} {
		in, a := good()
		spoil(in, &a)
		if _, _, err := in.planPull(a); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
