package measure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
)

// TestMain is also an owner in another process.
func TestMain(m *testing.M) {
	if library := os.Getenv("MEASURE_OWNER"); library != "" {
		d, err := cuda.Open(library)
		if err == nil {
			err = ServeOwner(config(d), os.Stdin, os.Stdout)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func config(d *cuda.Driver) Config {
	return Config{Driver: d, Shape: Shape{Regions: 3, BlockBytes: 4096, Pool: 12, Plan: 7}, Groups: []int{2, 8}, Repeats: 2}
}

func opened(t *testing.T) (*cuda.Driver, *fake.Control, string) {
	t.Helper()
	library := fake.CUDA(t)
	d, err := cuda.Open(library)
	fake.RequireOpened(t, err)
	return d, fake.Open(t, library), library
}

// newBench returns a bench that is closed when the test ends.
func newBench(t *testing.T, c Config) *Bench {
	t.Helper()
	r, err := NewBench(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// owner returns an owner in another process, which ends with the test.
func owner(t *testing.T, library string) *Owner {
	t.Helper()
	o, err := StartOwner(t.Context(), func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), "MEASURE_OWNER="+library)
		cmd.Stderr = os.Stderr
		return cmd
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	return o
}

// The whole check on the fake: the figures mean nothing, what is called is real.
func TestMeasure(t *testing.T) {
	d, c, library := opened(t)
	live := c.Live("")
	r, err := NewBench(config(d))
	if err != nil {
		t.Fatal(err)
	}
	rows, err := r.MeasureCopies()
	if err != nil {
		t.Fatal(err)
	}
	o := owner(t, library)
	for _, f := range []func() ([]Row, error){func() ([]Row, error) { return r.MeasurePulls(o) }, func() ([]Row, error) { return r.MeasureInterference(o, 3) }} {
		more, err := f()
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, more...)
	}
	if _, err := o.Do(Request{Spread: true}); err == nil || !strings.Contains(err.Error(), "PyTorch") {
		t.Errorf("a spread without PyTorch: %v", err)
	}
	if _, err := o.Do(Request{}); err == nil {
		t.Error("no steps are timed")
	}
	o.Close()
	count := map[string]int{}
	for _, row := range rows {
		count[row.Part]++
		if row.Path == "" || row.Seconds < 0 || row.Submit < 0 {
			t.Errorf("%+v", row)
		}
	}
	want := map[string]int{Within: 5, ToHost: 5, FromHost: 5, Checksum: 2, Across: 3, Decode: 5}
	for part, n := range want {
		if count[part] != n {
			t.Errorf("%s: %d rows, want %d", part, count[part], n)
		}
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if n := c.Live(""); n != live {
		t.Errorf("%d handles are alive, %d were", n, live)
	}
}

// Each call of the driver is made to fail: the error names it, and nothing is left. That
// is so in each stage of a check, and in the process that holds a pool.
func TestEachCallFails(t *testing.T) {
	d, c, library := opened(t)
	live := c.Live("")
	o := owner(t, library)
	withBench := func(f func(r *Bench) error) func() error {
		return func() error {
			r, err := NewBench(config(d))
			if err != nil {
				return err
			}
			return errors.Join(f(r), r.Close())
		}
	}
	start := []string{
		"cuDeviceGet", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuModuleLoadData", "cuModuleGetFunction", "cuStreamCreateWithPriority", "cuEventCreate",
		"cuMemAlloc_v2", "cuMemHostAlloc", "cuMemHostGetDevicePointer_v2", "cuMemcpyHtoDAsync_v2", "cuStreamSynchronize", "cuMemFree_v2", "cuMemFreeHost",
		"cuModuleUnload", "cuEventDestroy_v2", "cuStreamDestroy_v2", "cuCtxGetStreamPriorityRange",
	}
	timed := []string{"cuEventRecord", "cuEventSynchronize", "cuEventElapsedTime", "cuLaunchKernel", "cuCtxSetCurrent"}
	for stage, s := range map[string]struct {
		check func() error
		calls []string
		// endless is work that runs until it is stopped: how many calls it makes is
		endless bool
	}{
		"Copies": {withBench(func(r *Bench) error { _, err := r.MeasureCopies(); return err }), append(append(start, timed...),
			"cuMemsetD8Async", "cuMemcpyDtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyBatchAsync_v2"), false},
		"From": {withBench(func(r *Bench) error { _, err := r.MeasurePulls(o); return err }), append(append(start, timed...),
			"cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle", "cuMemsetD8Async", "cuMemcpyDtoDAsync_v2"), false},
		"Disturb": {withBench(func(r *Bench) error { _, err := r.MeasureInterference(o, 3); return err }), []string{"cuLaunchKernel", "cuMemcpyBatchAsync_v2"}, true},
		"Hold": {func() error {
			var out strings.Builder
			err := ServeOwner(config(d), strings.NewReader(`{"decode":2}`+"\n"), &out)
			if strings.Contains(out.String(), `"error"`) {
				err = errors.Join(err, errors.New(out.String()))
			}
			return err
		}, append(append(start, timed...), "cuMemGetAddressRange_v2", "cuIpcGetMemHandle", "cuDeviceGetName", "cuDeviceGetUuid_v2"), false},
	} {
		t.Run(stage, func(t *testing.T) {
			for _, call := range s.calls {
				before := c.Calls(call)
				if err := s.check(); err != nil {
					t.Fatalf("before %s: %v", call, err)
				}
				n := c.Calls(call) - before
				if n == 0 {
					t.Errorf("%s is never called", call)
					continue
				}
				for _, nth := range slices.Compact([]int{1, (n + 1) / 2, n}) {
					if s.endless && nth > 1 {
						continue
					}
					c.Fail(call, nth, 1)
					err := s.check()
					c.Clear()
					if call == "cuDeviceGetAttribute" && err == nil {
						continue // an attribute that the driver does not know
					}
					if err == nil || !strings.Contains(err.Error(), call) {
						t.Errorf("%s fails at call %d of %d: %v", call, nth, n, err)
					}
					if alive := c.Live(""); alive > live {
						t.Errorf("%s fails at call %d of %d: %d handles are alive, %d were", call, nth, n, alive, live)
						live = alive
					}
				}
			}
		})
	}
}

func TestConfigs(t *testing.T) {
	d, _, _ := opened(t)
	for name, edit := range map[string]func(*Config){
		"no driver": func(c *Config) { c.Driver = nil }, "no groups": func(c *Config) { c.Groups = nil }, "no regions": func(c *Config) { c.Shape.Regions = 0 },
		"odd blocks": func(c *Config) { c.Shape.BlockBytes = 100 }, "a large plan": func(c *Config) { c.Shape.Plan = 99 }, "no such GPU": func(c *Config) { c.Ordinal = 99 },
		"a huge pool": func(c *Config) { c.Shape.BlockBytes, c.Shape.Pool = 1<<40, 1<<20 },
	} {
		c := config(d)
		edit(&c)
		if r, err := NewBench(c); err == nil {
			r.Close()
			t.Errorf("%s is taken", name)
		}
	}
	if s := (Shape{Regions: 56, BlockBytes: 32 << 10, Pool: 1024, Plan: 512}).hostShape(); s.Bytes() > hostBytes || s.Plan == 0 {
		t.Errorf("%+v", s)
	}
}

// Lies of an owner are errors.
func TestOwnersThatLie(t *testing.T) {
	for name, line := range map[string]string{
		"nothing": "", "no JSON": "hello", "an error": `{"error":"no GPU"}`, "no handle": `{"owner":"x","bytes":5}`,
		"a bad handle": `{"handle":"zz"}`, "VMM": `{"bytes":1,"handle":"02` + strings.Repeat("00", 47) + `01` + strings.Repeat("00", 71) + `"}`,
	} {
		_, err := StartOwner(t.Context(), func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, "/bin/echo", line) })
		if err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	var out bytes.Buffer
	if err := ServeOwner(Config{}, strings.NewReader(""), &out); err == nil || !strings.Contains(out.String(), `"error":`) {
		t.Errorf("%v: %s", err, &out)
	}
	if m := Median([]float64{3, 1, 2}); m != 2 || Median(nil) != 0 || Median([]float64{4, 2}) != 3 {
		t.Error("the median is another's")
	}
}
