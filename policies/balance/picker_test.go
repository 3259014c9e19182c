package balance

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// TestPickerScenarios runs testdata/picker/*.txt:
//
//	stage HIGH TIER…   a stage; a tier is endpoints separated by commas, each PORT, with *WEIGHT
//	                   if it is not 1, and with ! if it is not ready
//	pick [length=N] [random=N] [subset=LIST] [avoid=PORTS] [last]   prints the stage and the ports
//	spread [the same]  the first ports of 1,000 requests, and their numbers to the nearest ten
func TestPickerScenarios(t *testing.T) {
	testkit.TestScenarios(t, "testdata/picker", func(*testing.T) testkit.Player {
		var m Picker
		return func(words []string) ([]string, error) {
			switch words[0] {
			case "stage":
				s, err := parseStage(words[1:])
				m = append(m, s)
				return nil, err
			case "pick":
				r, err := parseRequest(words[1:])
				stage, addresses := m.Pick(r)
				return []string{fmt.Sprintf("s%d: %s", stage, strings.ReplaceAll(strings.Join(addresses, " "), "10.0.0.1:", ""))}, err
			case "spread":
				return spread(m, words[1:])
			}
			return nil, fmt.Errorf("no such command: %s", words[0])
		}
	})
}

func spread(m Picker, words []string) (out []string, err error) {
	counts := make(map[string]int)
	for n := range uint64(1000) {
		r, err := parseRequest(words)
		if err != nil {
			return nil, err
		}
		r.Random = n
		_, addresses := m.Pick(r)
		counts[addresses[0]]++
	}
	for address, n := range counts {
		out = append(out, fmt.Sprintf("%s %d", strings.TrimPrefix(address, "10.0.0.1:"), (n+5)/10*10))
	}
	slices.Sort(out)
	return out, nil
}

func parseStage(words []string) (s PickerStage, err error) {
	if _, err := fmt.Sscan(words[0], &s.High); err != nil {
		return s, err
	}
	for _, tier := range words[1:] {
		var list []Endpoint
		for text := range strings.SplitSeq(tier, ",") {
			text, down := strings.CutSuffix(text, "!")
			port, weight := uint16(0), uint32(1)
			if _, err := fmt.Sscanf(text+" ", "%d*%d", &port, &weight); err != nil && port == 0 {
				return s, err
			}
			list = append(list, NewEndpoint(netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), port), weight, !down))
		}
		s.Tiers = append(s.Tiers, list)
	}
	return s, nil
}

func parseRequest(words []string) (r PickRequest, err error) {
	r.Length = -1
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		switch name {
		case "length":
			_, err = fmt.Sscan(value, &r.Length)
		case "random":
			_, err = fmt.Sscan(value, &r.Random)
		case "subset":
			r.Subset = NewSubset(value)
		case "last":
			r.LastResort = true
		case "avoid":
			r.Avoid = func(address string) bool {
				return slices.Contains(strings.Split(value, ","), strings.TrimPrefix(address, "10.0.0.1:"))
			}
		default:
			err = fmt.Errorf("no such field: %s", name)
		}
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

// TestOracle compares Pick with a sort of each tier by rank, on random fleets.
func TestOracle(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		m, all := randomModel(rng)
		r := PickRequest{Length: policies.Tokens(rng.IntN(5000) - 100), Random: rng.Uint64()}
		if rng.IntN(2) == 0 {
			var entries []string
			for _, a := range all {
				if rng.IntN(2) == 0 {
					entries = append(entries, a.String())
				}
			}
			r.Subset = NewSubset(entries...)
		}
		stage, got := m.Pick(r)
		if want := oracle(m[stage], r); !slices.Equal(got, want) {
			t.Fatalf("%+v: picked %v, want %v", r, got, want)
		}
		if r.Length >= 0 && (stage > 0 && r.Length < m[stage-1].High || stage < len(m)-1 && r.Length >= m[stage].High) {
			t.Fatalf("length %d is in stage %d", r.Length, stage)
		}
		if r.Length < 0 && stage != len(m)-1 {
			t.Fatalf("an unknown length is in stage %d of %d", stage, len(m))
		}
	}
}

func oracle(s PickerStage, r PickRequest) (out []string) {
	var columns [][]string
	for _, tier := range s.Tiers {
		var open []Endpoint
		for _, e := range tier {
			if e.ready && (r.Subset == nil || r.Subset.ports[e.address]) {
				open = append(open, e)
			}
		}
		score := func(e Endpoint) float64 {
			return float64(e.weight) / -math.Log((float64(Mix(Mix(r.Random)^e.hash)>>12)+0.5)/(1<<52))
		}
		slices.SortFunc(open, func(a, b Endpoint) int {
			if score(a) > score(b) {
				return -1
			}
			return 1
		})
		var column []string
		for _, e := range open {
			column = append(column, e.text)
		}
		columns = append(columns, column)
	}
	if own := columns[0]; len(own) > 1 { // its first two stand together
		columns[0] = own[1:]
		out = append(out, own[0])
	}
	for place := range 100 {
		for _, c := range columns {
			if place < len(c) && len(out) < MaxAddresses {
				out = append(out, c[place])
			}
		}
	}
	return out
}

// randomModel returns a model and all addresses of it; some endpoints are not ready.
func randomModel(rng *rand.Rand) (m Picker, all []netip.AddrPort) {
	n := 1 + rng.IntN(12)
	for i := range n {
		all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i / 3)}), uint16(8000+i%3)))
	}
	high := policies.Tokens(0)
	stages := 1 + rng.IntN(4)
	for k := range stages {
		if high += policies.Tokens(1 + rng.IntN(1000)); k == stages-1 {
			high = policies.Unbounded
		}
		tiers := make([][]Endpoint, 1+rng.IntN(4))
		for _, a := range all {
			i := rng.IntN(len(tiers))
			tiers[i] = append(tiers[i], NewEndpoint(a, uint32(rng.IntN(400)), rng.IntN(4) > 0))
		}
		m = append(m, PickerStage{high, tiers})
	}
	return m, all
}

func TestSubset(t *testing.T) {
	for _, x := range []struct {
		entries  []string
		contains []string
		lacks    []string
	}{
		{nil, nil, []string{"10.0.0.1:8000"}},
		{[]string{""}, nil, []string{"10.0.0.1:8000"}},
		{[]string{"10.0.0.1:8000"}, []string{"10.0.0.1:8000", "[::ffff:10.0.0.1]:8000"}, []string{"10.0.0.1:8001", "10.0.0.2:8000"}},
		{[]string{" 10.0.0.1:8000 ,10.0.0.2:8000"}, []string{"10.0.0.1:8000", "10.0.0.2:8000"}, []string{"10.0.0.3:8000"}},
		{[]string{"10.0.0.1"}, []string{"10.0.0.1:8000", "10.0.0.1:1"}, []string{"10.0.0.2:8000"}},
		{[]string{"[::1]:80", "[::2]", "::3"}, []string{"[::1]:80", "[::2]:9", "[::3]:9"}, []string{"[::1]:81"}},
		{[]string{"::ffff:10.0.0.1"}, []string{"10.0.0.1:8000"}, nil},
		{[]string{"host:8000", "10.0.0.1:x", "10.0.0.1:99999", "*", "10.0.0.0/8"}, nil, []string{"10.0.0.1:8000", "10.0.0.0:8000"}},
	} {
		s := NewSubset(x.entries...)
		for _, a := range x.contains {
			if !s.Contains(netip.MustParseAddrPort(a)) {
				t.Errorf("%q lacks %s", x.entries, a)
			}
		}
		for _, a := range x.lacks {
			if s.Contains(netip.MustParseAddrPort(a)) {
				t.Errorf("%q contains %s", x.entries, a)
			}
		}
	}
	if !(*Subset)(nil).Contains(netip.MustParseAddrPort("10.0.0.1:8000")) {
		t.Error("no subset allows nothing")
	}
}

func BenchmarkPick(b *testing.B) {
	for _, n := range []int{16, 1000, 10_000} {
		var own, other []Endpoint
		for i := range n {
			e := NewEndpoint(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 8000), 100, true)
			if i%4 == 0 {
				own = append(own, e)
			} else {
				other = append(other, e)
			}
		}
		m := Picker{{policies.Unbounded, [][]Endpoint{own, other}}}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			random := uint64(0)
			for b.Loop() {
				random++
				m.Pick(PickRequest{Length: 100, Random: random})
			}
		})
	}
}
