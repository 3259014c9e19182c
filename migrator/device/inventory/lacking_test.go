//go:build cgo && linux

package inventory

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
)

// childMain uses another library in a process of its own, because a process is bound to its
// first one. It prints what it has found.
func childMain(path string) int {
	l, err := OpenNVML(NVMLConfig{Library: path})
	var lacks *device.SymbolError
	switch {
	case errors.As(err, &lacks):
		fmt.Println("open lacks", lacks.Symbol)
		return 0
	case errors.Is(err, device.ErrNoLibrary):
		fmt.Println("no library")
		return 0
	case err != nil:
		fmt.Println("open:", err)
		return 1
	}
	lacking := slices.DeleteFunc(slices.Clone(optional), func(s string) bool { return !l.missing[s] })
	fmt.Println("lacks", strings.Join(lacking, " "))
	if err := l.Close(); err != nil {
		fmt.Println("close:", err)
		return 1
	}
	in, _, err := useLibrary(path)
	if errors.As(err, &lacks) {
		fmt.Println("watch lacks", lacks.Symbol)
	} else if err != nil {
		fmt.Println("use:", err)
		return 1
	}
	fmt.Println(len(in.GPUs), "GPUs")
	return 0
}

// runChild runs childMain in another process and returns its output.
func runChild(t *testing.T, path string) string {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "NVML_TEST_LIBRARY="+path, "FAKE_NVML_XID=0:1", "FAKE_NVML_LINKS=switch", "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	return string(out)
}

// TestLackingSymbols takes one symbol after the other from the library. Not one of
// them ends the process.
func TestLackingSymbols(t *testing.T) {
	whole := fake.NVML(t)
	var all sync.WaitGroup
	defer all.Wait()
	at := make(chan struct{}, 4)
	for _, s := range append(slices.Clone(required), optional...) {
		path := fake.Copy(t, whole, s)
		all.Go(func() {
			at <- struct{}{}
			defer func() { <-at }()
			want := "lacks " + s + "\n2 GPUs\n"
			switch {
			case slices.Contains(required, s):
				want = "open lacks " + s + "\n"
			case strings.Contains(s, "Event") && s != "nvmlDeviceGetCurrentClocksEventReasons":
				want = "lacks " + s + "\nwatch lacks " + s + "\n2 GPUs\n"
			}
			if got := runChild(t, path); got != want {
				t.Errorf("without %s: %q", s, got)
			}
		})
	}
}

func TestWithoutALibrary(t *testing.T) {
	if got := runChild(t, "libnothing-at-all.so.1"); got != "no library\n" {
		t.Errorf("%q", got)
	}
}
