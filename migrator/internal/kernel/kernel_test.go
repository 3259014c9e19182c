package kernel

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// tool finds a file of the wheels that "make ptxas" installs, or skips. $CI makes
// it fail.
func tool(t *testing.T, pattern ...string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(append([]string{"..", "..", "..", ".cache", "ptxas"}, pattern...)...))
	if err != nil {
		t.Fatal(err)
	}
	if len(found) > 0 {
		return found[0]
	}
	const why = "there is no NVIDIA assembler to hold the kernels against: make ptxas"
	if os.Getenv("CI") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
	return ""
}

// TestKernelsAssemble has the real assembler take every kernel for each of the
// generations that are in use.
func TestKernelsAssemble(t *testing.T) {
	ptxas := tool(t, "lib", "python*", "site-packages", "nvidia", "cuda_nvcc", "bin", "ptxas")
	for _, arch := range []string{"sm_80", "sm_90", "sm_100"} {
		cmd := exec.CommandContext(t.Context(), ptxas, "-arch="+arch, "-v", "-warn-spills", "-Werror", "-o", os.DevNull, "kernels.ptx")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", arch, err, out)
		}
		for _, name := range []string{Copy, Gather, Scatter, Sum, SumDestination} {
			if !strings.Contains(string(out), "'"+name+"'") {
				t.Errorf("%s: nothing is assembled for %s\n%s", arch, name, out)
			}
		}
	}
	bad := filepath.Join(t.TempDir(), "bad.ptx")
	if err := os.WriteFile(bad, []byte(strings.Replace(PTX, "ld.global.cs.v4", "ld.global.cs.v5", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), ptxas, "-arch=sm_80", "-o", os.DevNull, bad).CombinedOutput(); err == nil {
		t.Errorf("the assembler takes anything\n%s", out)
	}
}

// TestPTXIsOfItsSource compiles the source once more.
func TestPTXIsOfItsSource(t *testing.T) {
	python := tool(t, "bin", "python")
	tool(t, "lib", "python*", "site-packages", "nvidia", "cuda_nvrtc", "lib", "libnvrtc.so.*")
	var problems bytes.Buffer
	cmd := exec.CommandContext(t.Context(), python, "ptx.py", "kernels.cu")
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, problems.String())
	}
	if string(out) != PTX {
		t.Error("kernels.ptx is not what kernels.cu makes: make ptx")
	}
}

// TestKernelsAreWide holds the code to loads and stores of 16 bytes.
func TestKernelsAreWide(t *testing.T) {
	for _, name := range []string{Copy, Gather, Scatter} {
		body := PTX[strings.Index(PTX, ".entry "+name+"("):]
		if next := strings.Index(body[1:], ".entry "); next > 0 {
			body = body[:next]
		}
		loads := len(regexp.MustCompile(`ld\.global\.cs\.v4\.u32`).FindAllString(body, -1))
		stores := len(regexp.MustCompile(`st\.global\.cs\.v4\.u32`).FindAllString(body, -1))
		if loads < 5 || stores < 5 { // four under way, and the rest
			t.Errorf("%s has %d loads and %d stores of 16 bytes", name, loads, stores)
		}
	}
}

// TestSumSeesWhatCanHappen changes one thing at a time.
func TestSumSeesWhatCanHappen(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 7, 8, 9, 16, 700, 4096, 5000} {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		want := Fold(Raw(b), int64(n))
		for range 200 {
			at, bit := rng.IntN(n), byte(1)<<rng.IntN(8)
			b[at] ^= bit
			if Fold(Raw(b), int64(n)) == want {
				t.Errorf("%d bytes: a bit of byte %d is not seen", n, at)
			}
			b[at] ^= bit
		}
		for range 50 {
			if n < 16 {
				break
			}
			i, j := rng.IntN(n/8), rng.IntN(n/8)
			if i == j || bytes.Equal(b[8*i:8*i+8], b[8*j:8*j+8]) {
				continue
			}
			swap := func() {
				var w [8]byte
				copy(w[:], b[8*i:])
				copy(b[8*i:8*i+8], b[8*j:8*j+8])
				copy(b[8*j:], w[:])
			}
			swap()
			if Fold(Raw(b), int64(n)) == want {
				t.Errorf("%d bytes: words %d and %d change places unseen", n, i, j)
			}
			swap()
		}
		if Fold(Raw(append(b, 0)), int64(n)+1) == want {
			t.Errorf("%d bytes and a zero more have one sum", n)
		}
	}
	if Fold(Raw(make([]byte, 64)), 64) == Fold(Raw(make([]byte, 128)), 128) {
		t.Error("zeros have one sum")
	}
}

// TestFoldIsSpread looks for sums that differ little and fold alike.
func TestFoldIsSpread(t *testing.T) {
	seen := map[uint32]int{}
	for bit := range 64 {
		seen[Fold(1<<bit, 32768)]++
	}
	if len(seen) != 64 {
		t.Errorf("64 sums of one bit have %d values", len(seen))
	}
}

func BenchmarkRaw(b *testing.B) {
	p := make([]byte, 32<<10)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		Raw(p)
	}
}
