package transport

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// findTool returns a file of the wheels that "make ptxas" installs, or skips the test;
// with $CI set it fails.
func findTool(t *testing.T, pattern ...string) string {
	t.Helper()
	found := testkit.Must(filepath.Glob(filepath.Join(append([]string{"..", "..", ".cache", "ptxas"}, pattern...)...)))
	if len(found) > 0 {
		return found[0]
	}
	testkit.Skip(t, testkit.Unavailable{What: "NVIDIA's assembler is not installed", Remedy: "run `make ptxas`", InCI: true})
	return ""
}

// TestKernelsAssemble assembles every kernel for each GPU generation in use.
func TestKernelsAssemble(t *testing.T) {
	ptxas := findTool(t, "lib", "python*", "site-packages", "nvidia", "cuda_nvcc", "bin", "ptxas")
	for _, arch := range []string{"sm_80", "sm_90", "sm_100"} {
		cmd := exec.CommandContext(t.Context(), ptxas, "-arch="+arch, "-v", "-warn-spills", "-Werror", "-o", os.DevNull, "kernels.ptx")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", arch, err, out)
		}
		for _, name := range []string{KernelCopy, KernelGather, KernelScatter, KernelSum, KernelSumDestination} {
			if !strings.Contains(string(out), "'"+name+"'") {
				t.Errorf("%s: the assembler reports nothing for %s\n%s", arch, name, out)
			}
		}
	}
	bad := filepath.Join(t.TempDir(), "bad.ptx")
	testkit.NoError(t, os.WriteFile(bad, []byte(strings.Replace(KernelPTX, "ld.global.cs.v4", "ld.global.cs.v5", 1)), 0o644))
	if out, err := exec.CommandContext(t.Context(), ptxas, "-arch=sm_80", "-o", os.DevNull, bad).CombinedOutput(); err == nil {
		t.Errorf("the assembler accepts invalid code\n%s", out)
	}
}

// TestPTXIsCurrent compiles the source and compares the result with kernels.ptx.
func TestPTXIsCurrent(t *testing.T) {
	python := findTool(t, "bin", "python")
	findTool(t, "lib", "python*", "site-packages", "nvidia", "cuda_nvrtc", "lib", "libnvrtc.so.*")
	var problems bytes.Buffer
	cmd := exec.CommandContext(t.Context(), python, "ptx.py", "kernels.cu")
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, problems.String())
	}
	if string(out) != KernelPTX {
		t.Error("kernels.ptx differs from the compiled kernels.cu: run make generate")
	}
}

// TestKernelsAreWide checks that kernels load and store 16 bytes at a time.
func TestKernelsAreWide(t *testing.T) {
	for _, name := range []string{KernelCopy, KernelGather, KernelScatter} {
		body := KernelPTX[strings.Index(KernelPTX, ".entry "+name+"("):]
		if next := strings.Index(body[1:], ".entry "); next > 0 {
			body = body[:next]
		}
		loads := len(regexp.MustCompile(`ld\.global\.cs\.v4\.u32`).FindAllString(body, -1))
		stores := len(regexp.MustCompile(`st\.global\.cs\.v4\.u32`).FindAllString(body, -1))
		if loads < 5 || stores < 5 { // four loads and stores per pass, and those for the remainder
			t.Errorf("%s has %d loads and %d stores of 16 bytes", name, loads, stores)
		}
	}
}

// TestRawDetectsChanges changes one input at a time.
func TestRawDetectsChanges(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 7, 8, 9, 16, 700, 4096, 5000} {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		want := FoldSum(RawSum(b), int64(n))
		for range 200 {
			at, bit := rng.IntN(n), byte(1)<<rng.IntN(8)
			b[at] ^= bit
			if FoldSum(RawSum(b), int64(n)) == want {
				t.Errorf("%d bytes: a changed bit of byte %d is not detected", n, at)
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
			if FoldSum(RawSum(b), int64(n)) == want {
				t.Errorf("%d bytes: exchanged words %d and %d are not detected", n, i, j)
			}
			swap()
		}
		if FoldSum(RawSum(append(b, 0)), int64(n)+1) == want {
			t.Errorf("%d bytes have the same checksum with another zero", n)
		}
	}
	if FoldSum(RawSum(make([]byte, 64)), 64) == FoldSum(RawSum(make([]byte, 128)), 128) {
		t.Error("different numbers of zeros have the same checksum")
	}
}

// TestFoldIsSpread checks that FoldSum spreads checksums that differ in one bit.
func TestFoldIsSpread(t *testing.T) {
	seen := map[uint32]int{}
	for bit := range 64 {
		seen[FoldSum(1<<bit, 32768)]++
	}
	if len(seen) != 64 {
		t.Errorf("64 checksums of one bit fold to %d values", len(seen))
	}
}
