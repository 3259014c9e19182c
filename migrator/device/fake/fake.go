// Package fake builds fake device libraries for tests: the real cgo code runs against
// them on any machine, and any call can be made to fail.
//
// CUDA, NVML and Verbs build a library and return its path; Open returns its Control. A
// library is one C file in this folder, compiled by gcc when a test needs it, and cached
// in the user's cache directory under the hash of its source. Only tests use the package.
package fake

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

//go:embed libcuda/libcuda.c libnvml/libnvidia-ml.c libverbs/libibverbs.c
var sources embed.FS

// errNoCompiler is the only reason for skipping tests.
var errNoCompiler = errors.New("gcc, which builds the fake library, is not installed")

// flags of the compiler.
var flags = []string{"-shared", "-fPIC", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-fvisibility=hidden"}

// CUDA builds the fake libcuda.so.1 and returns its path. Without a compiler it skips the
// test, or fails it if $CI is set; so do NVML and Verbs.
func CUDA(t testing.TB) string {
	t.Helper()
	return library(t, "libcuda/libcuda.c", "core.h", transport.KernelCore)
}

// NVML builds the fake libnvidia-ml.so.1 and returns its path.
func NVML(t testing.TB) string {
	t.Helper()
	return library(t, "libnvml/libnvidia-ml.c", "", "")
}

// Verbs builds the fake libibverbs.so.1 and returns its path.
func Verbs(t testing.TB) string {
	t.Helper()
	return library(t, "libverbs/libibverbs.c", "abi.h", verbs.ABI)
}

// RequireOpened fails the test for an error of opening a library. In a build without cgo,
// which opens none, it skips the test.
func RequireOpened(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, device.ErrNoCgo) {
		testkit.Skip(t, testkit.Unavailable{What: err.Error(), Remedy: "set CGO_ENABLED=1", InCI: true})
	}
	testkit.NoError(t, err)
}

func library(t testing.TB, source, header, text string) string {
	t.Helper()
	path, err := build(source, header, text)
	if errors.Is(err, errNoCompiler) {
		testkit.Skip(t, testkit.Unavailable{What: err.Error(), Remedy: "install gcc", InCI: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// build compiles a source with its header, "" for none, unless the result is in the cache.
func build(source, header, text string) (string, error) {
	c, err := sources.ReadFile(source)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	fmt.Fprint(sum, flags, header, text)
	sum.Write(c)
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	name := filepath.Base(source)
	out := filepath.Join(cache, "cascade", "fake", name[:len(name)-len(".c")]+"-"+hex.EncodeToString(sum.Sum(nil)[:8])+".so")
	if _, err := os.Stat(out); err == nil {
		return out, nil
	}
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		return "", errNoCompiler
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(filepath.Dir(out), "build-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, name), c, 0o644); err != nil {
		return "", err
	}
	if header != "" {
		if err := os.WriteFile(filepath.Join(dir, header), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	lib := filepath.Join(dir, "lib.so")
	if msg, err := exec.Command(gcc, append(flags, "-o", lib, filepath.Join(dir, name), "-lpthread")...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("gcc %s: %w\n%s", name, err, msg)
	}
	return out, os.Rename(lib, out) // a concurrent build makes the same file
}

// Copy copies a library to another path, which makes it another library with its own
// state, and takes the given symbols out of the copy.
func Copy(t testing.TB, path string, without ...string) string {
	t.Helper()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range without {
		less := bytes.ReplaceAll(whole, []byte("\x00"+name+"\x00"), []byte("\x00~"+name[1:]+"\x00"))
		if bytes.Equal(less, whole) {
			t.Fatalf("%s has no symbol %s", path, name)
		}
		whole = less
	}
	base, _, _ := strings.Cut(filepath.Base(path), "-")
	out := filepath.Join(t.TempDir(), base+".so.1")
	if err := os.WriteFile(out, whole, 0o755); err != nil {
		t.Fatal(err)
	}
	return out
}

// CheckShim builds shim.c of the test's folder and the C program testdata/asan.c, which
// makes every call of a library, with the address sanitizer, and runs it.
func CheckShim(t testing.TB, library string) {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "asan")
	out, err := exec.CommandContext(t.Context(), "gcc", "-g", "-O1", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined",
		"-fno-sanitize-recover=all", "-o", exe, filepath.Join("testdata", "asan.c"), "shim.c", "-ldl", "-lpthread").CombinedOutput()
	if err != nil && strings.Contains(string(out), "libasan") {
		testkit.Skip(t, testkit.Unavailable{What: "gcc has no address sanitizer", Remedy: "install libasan", InCI: true})
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), exe, library)
	cmd.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=0") // LeakSanitizer wants ptrace, and drivers have leaks of their own
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "every call is clean") {
		t.Errorf("%v\n%s", err, out)
	}
}
