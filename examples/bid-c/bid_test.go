// Package bidc_test builds the bid policy in C, compares it with the same rule in
// Go, and measures it.
package bidc_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/guesttest"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// near is the rule of near.c.
type near struct{}

func (near) Select(bids []policies.Bid) int {
	if len(bids) == 0 {
		return -1
	}
	least := policies.Unbounded
	for _, b := range bids {
		least = min(least, b.Load)
	}
	most := policies.Unbounded
	if least <= policies.Unbounded/2 {
		most = least + least/4
	}
	best := -1
	for i, b := range bids {
		if b.Load <= most && (best < 0 || b.Start < bids[best].Start || b.Start == bids[best].Start && b.Load < bids[best].Load) {
			best = i
		}
	}
	return best
}

// build compiles near.c with $ZIG, or the wheel that "make zig" installs. Without
// either it skips the test, or fails it under CI.
func build(t testing.TB) []byte {
	t.Helper()
	root := filepath.Join("..", "..")
	zig := []string{filepath.Join(root, ".cache", "zig", "bin", "python"), "-m", "ziglang"}
	if path := os.Getenv("ZIG"); path != "" {
		zig = []string{path}
	} else if _, err := os.Stat(zig[0]); err != nil {
		testkit.Skip(t, testkit.Unavailable{What: "Zig, which compiles C to WebAssembly, is not installed", Remedy: "run `make zig`", InCI: true})
	}
	out := filepath.Join(t.TempDir(), "near.wasm")
	args := append(zig[1:], "cc", "-target", "wasm32-freestanding", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-nostdlib",
		"-I", filepath.Join(root, "wasm", "guest", "c"), "-Wl,--no-entry", "-Wl,--strip-debug", "-o", out, filepath.Join("src", "near.c"))
	if msg, err := exec.Command(zig[0], args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", zig, err, msg)
	}
	code, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return code
}

func TestNear(t *testing.T) {
	code := build(t)
	m, err := host.Load(context.Background(), host.Config{Kinds: []abi.Kind{abi.Select}}, code)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	i, err := m.Instantiate()
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	guesttest.Compare(t, i, near{})
	for _, c := range []struct {
		bids []policies.Bid
		want int
	}{
		{[]policies.Bid{{Load: 100, Start: 9}, {Load: 125, Start: 8}, {Load: 126, Start: 0}}, 1},
		{[]policies.Bid{{Load: policies.Unbounded, Start: 1}, {Load: policies.Unbounded, Start: 1}}, 0},
		{nil, -1},
	} {
		if got, err := i.Select(abi.Call{}, c.bids); err != nil || got != c.want || got != (near{}).Select(c.bids) {
			t.Errorf("%+v: %d, %v; want %d", c.bids, got, err, c.want)
		}
	}
	t.Logf("%d bytes of module, %d ticks for no bids", len(code), i.Fuel())
}

// BenchmarkNear is a decision among 16 bids, end to end.
func BenchmarkNear(b *testing.B) {
	m := guesttest.Load(b, build(b), host.Config{})
	i := guesttest.Start(b, m)
	bids := make([]policies.Bid, 16)
	for i := range bids {
		bids[i] = policies.Bid{From: "replica-x", Load: policies.Tokens(i * 7919 % 31), Start: policies.Micros(i * 31 % 7)}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := i.Select(abi.Call{ID: 7}, bids); err != nil {
			b.Fatal(err)
		}
	}
}
