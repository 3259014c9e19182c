package guest_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest"
	"github.com/cascadeinfer/cascade/wasm/guest/bidquote"
	"github.com/cascadeinfer/cascade/wasm/guest/bidselect"
	"github.com/cascadeinfer/cascade/wasm/guest/configure"
	"github.com/cascadeinfer/cascade/wasm/guest/guard"
	"github.com/cascadeinfer/cascade/wasm/guest/guesttest"
	"github.com/cascadeinfer/cascade/wasm/guest/outlier"
	"github.com/cascadeinfer/cascade/wasm/guest/partition"
	"github.com/cascadeinfer/cascade/wasm/guest/place"
	"github.com/cascadeinfer/cascade/wasm/guest/refine"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// answers is a policy of every kind. Its answer is the field of the kind.
type answers struct {
	t         *testing.T
	none      bool
	partition policies.Partition
	err       error
	refine    policies.Tokens
	bid       policies.Bid
	winner    int
	excess    policies.Tokens
	peer      policies.ReplicaID
	denial    abi.Denial
	config    string
}

func (a *answers) Partition(w policies.Workload) (policies.Partition, error) {
	return a.partition, a.err
}
func (a *answers) Refine(b policies.BoundaryView) policies.Tokens { return a.refine }
func (a *answers) Quote(policies.Occupancy, policies.Migration) (policies.Bid, bool) {
	return a.bid, !a.none
}
func (a *answers) Select(bids []policies.Bid) int {
	if len(bids) > 0 {
		// The values that every frame of the vectors has.
		if guest.Now() != 1_700_000_000_000_000 || guest.Seed() != 42 || string(guest.State()) != "state" {
			a.t.Errorf("the call is at %d with seed %d and state %q", guest.Now(), guest.Seed(), guest.State())
		}
		if guest.Keep(make([]byte, 17)) || !guest.Keep([]byte("new")) || string(guest.State()) != "new" {
			a.t.Errorf("the state is %q after it was replaced", guest.State())
		}
	}
	return a.winner
}
func (a *answers) Excess(own, mean policies.Tokens) policies.Tokens { return a.excess }
func (a *answers) Place(policies.Arrival) policies.ReplicaID        { return a.peer }
func (a *answers) Guard(abi.Change) (abi.Denial, bool)              { return a.denial, !a.none }
func (a *answers) Configure(config []byte) error {
	a.config = string(config)
	return a.err
}

// decide has the native stubs, by the names of the kinds in the vectors.
var decide = map[string]func([]byte) uint64{
	"configure": configure.Decide, "partition": partition.Decide, "refine": refine.Decide, "bid-quote": bidquote.Decide,
	"bid-select": bidselect.Decide, "outlier": outlier.Decide, "place": place.Decide, "guard": guard.Decide,
}

func register(a *answers) {
	configure.Register(a)
	partition.Register(a)
	refine.Register(a)
	bidquote.Register(a)
	bidselect.Register(a)
	outlier.Register(a)
	place.Register(a)
	guard.Register(a)
}

// TestVectors answers the golden vectors of the ABI natively, and checks that results and
// outputs are those of the files.
func TestVectors(t *testing.T) {
	inf := math.Inf(1)
	for name, a := range map[string]*answers{
		"configure":            {},
		"partition":            {partition: policies.Partition{Cuts: []policies.Tokens{1024}, Counts: []int{5, 3}, Cost: 1.25, OneStage: inf, Iterations: []float64{0.012, 0.034}, Exact: true}},
		"partition-infeasible": {err: policies.ErrInfeasible},
		"refine":               {refine: 1900},
		"bid-quote":            {bid: policies.Bid{Load: 128_000, Start: 2500}},
		"bid-quote-none":       {none: true},
		"bid-select":           {winner: 1},
		"bid-select-none":      {winner: -1},
		"outlier":              {excess: 50_000},
		"place":                {peer: "replica-2"},
		"guard":                {none: true},
		"guard-denied":         {denial: abi.Denial{Code: 3, Detail: "too wide"}},
	} {
		a.t = t
		register(a)
		frame, v := read(t, name)
		result := decide[v.Kind](frame)
		if want, _ := strconv.ParseUint(v.Result.I64, 0, 64); result != want {
			t.Errorf("%s: the result is %#x, want %#x", name, result, want)
		}
		if v.Output != "" {
			at := int(frame[56]) | int(frame[57])<<8
			if got := hex.EncodeToString(frame[at : at+len(v.Output)/2]); got != v.Output {
				t.Errorf("%s: the output is %s, want %s", name, got, v.Output)
			}
		}
		if name == "configure" && a.config != "percent: 25" {
			t.Errorf("the configuration is %q", a.config)
		}
		// A truncated frame is malformed for every kind.
		for kind, f := range decide {
			if s, _ := abi.Unpack(f(frame[:40])); s != abi.BadFrame {
				t.Errorf("%s: half a header is %v to %s", name, s, kind)
			}
		}
	}
	if guest.Now() != 0 || guest.Seed() != 0 || guest.State() != nil || guest.Keep([]byte("x")) {
		t.Error("there is a call after the last")
	}
}

// vector has the fields of NAME.json that the tests use.
type vector struct {
	Kind   string
	Result struct{ I64 string }
	Output string `json:"output_hex"`
}

func read(t *testing.T, name string) ([]byte, vector) {
	t.Helper()
	path := filepath.Join("..", "abi", "testdata", name)
	text := testkit.Must(os.ReadFile(path + ".hex"))
	frame := testkit.Must(hex.DecodeString(strings.Join(strings.Fields(string(text)), "")))
	text = testkit.Must(os.ReadFile(path + ".json"))
	var v vector
	testkit.NoError(t, json.Unmarshal(text, &v))
	return frame, v
}

// TestUnregistered checks that unregistered kinds are unsupported, and errors are failures.
func TestUnregistered(t *testing.T) {
	register(&answers{err: errors.New("no")})
	for _, name := range []string{"configure", "partition"} {
		frame, v := read(t, name)
		if s, _ := abi.Unpack(decide[v.Kind](frame)); s != abi.Failed {
			t.Errorf("%s with an error: %v", name, s)
		}
	}
	configure.Register(nil)
	partition.Register(nil)
	refine.Register(nil)
	bidquote.Register(nil)
	bidselect.Register(nil)
	outlier.Register(nil)
	place.Register(nil)
	guard.Register(nil)
	for kind, f := range decide {
		frame, _ := read(t, kind)
		if s, _ := abi.Unpack(f(frame)); s != abi.Unsupported {
			t.Errorf("%s without a policy: %v", kind, s)
		}
	}
}

// TestOlderHost checks that the frame of a host that sends a snapshot without the QoE model, as
// those before 1.4 do, is refused as a whole, whatever the policy needs.
func TestOlderHost(t *testing.T) {
	register(&answers{partition: policies.Partition{Counts: []int{8}, Iterations: []float64{0.01}}})
	frame, _ := read(t, "partition")
	binary.LittleEndian.PutUint32(frame[20:], 144) // arg_len
	if s, _ := abi.Unpack(partition.Decide(frame)); s != abi.Unsupported {
		t.Errorf("the status is %v, want %v", s, abi.Unsupported)
	}
}

// TestModule runs testdata/guest, a policy that panics in every way, keeps state and logs.
func TestModule(t *testing.T) {
	var said bytes.Buffer
	m := guesttest.Load(t, guesttest.Build(t, filepath.Join("testdata", "guest")), host.Config{Logger: slog.New(slog.NewTextHandler(&said, nil))})
	if kinds := m.Kinds(); !reflect.DeepEqual(kinds, []abi.Kind{abi.Quote, abi.Select, abi.Outlier, abi.Guard}) {
		t.Errorf("it decides %v; a module exports what it imports packages for", kinds)
	}

	// The first argument selects the panic. It kills the instance, and the host reports
	// what the runtime prints.
	for own, want := range []string{"", "panic: no share", "panic: an error", "panic: runtime error: index out of range [7] with length 0",
		"panic: runtime error: invalid memory address or nil pointer dereference"} {
		g := guesttest.Start(t, m)
		x, err := g.Excess(abi.Call{}, policies.Tokens(own), 0)
		var fault *host.Fault
		switch {
		case want == "":
			if x != 0 || err != nil {
				t.Errorf("no panic: %d, %v", x, err)
			}
		case !errors.As(err, &fault) || fault.Cause != host.Trapped || !strings.HasPrefix(fault.Text, want) || !strings.Contains(fault.Text, "main.policy.Excess"):
			t.Errorf("panic %d: %v; want %q and a stack", own, err, want)
		case g.Dead() == nil:
			t.Errorf("panic %d did not end the instance", own)
		}
	}

	g := guesttest.Start(t, m)
	// Bids: it counts its calls in the state, and logs the count.
	c := abi.Call{Room: 8}
	for n := range 3 {
		i, err := g.Select(c, make([]policies.Bid, 70))
		if err != nil || i != n+1 {
			t.Errorf("call %d: %d, %v", n, i, err)
		}
		state, err := g.State(c.Room)
		testkit.NoError(t, err)
		c.State = append([]byte(nil), state...)
		if want := "call " + strconv.Itoa(n+1); !strings.Contains(said.String(), want) {
			t.Errorf("it did not say %q: %s", want, &said)
		}
	}

	ch := abi.Change{Next: policies.OneStagePlan("m", []policies.ReplicaID{"a"})}
	if d, denied, err := g.Guard(abi.Call{}, ch); err != nil || !denied || d.Detail != "m is too small" {
		t.Errorf("guard: %+v, %v, %v", d, denied, err)
	}
}
