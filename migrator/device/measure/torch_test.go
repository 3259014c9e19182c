package measure

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// python is an interpreter, or a skipped test.
func python(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3")
	}
	return path
}

// ask runs a piece of Python with the script as module m.
func ask(t *testing.T, code string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), python(t), append([]string{"-B", "-c", "import torch_owner as m, sys, json\n" + code}, args...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestScriptArguments(t *testing.T) {
	if out, err := ask(t, "a = m.arguments(sys.argv[1:]); print(a.device, a.bytes, a.batch, a.tokens)", "--bytes", "4096", "--device", "3", "--tokens", "64"); err != nil || strings.TrimSpace(out) != "3 4096 32 64" {
		t.Errorf("%q, %v", out, err)
	}
	// One interpreter tries all that is wrong: starting it is what takes time.
	out, err := ask(t, `
for words in sys.argv[1:]:
    try:
        m.arguments(words.split())
        print("taken:", words)
    except SystemExit as e:
        print("code", e.code)
`, "", "--bytes 0", "--bytes many", "--bytes 1 --batch 2", "--bytes 1 --device -1", "--bytes 1 --what")
	if err != nil || strings.Contains(out, "taken") || strings.Count(out, "code 2") != 6 || strings.Count(out, "usage:") != 6 {
		t.Errorf("%q, %v", out, err)
	}
}

// The batches of a spread are of one size and, but for the first ones, of one sum.
func TestScriptSpreads(t *testing.T) {
	cases := []struct{ Batch, Tokens int }{{32, 8192}, {4, 64}, {64, 100}, {7, 333}}
	list, err := json.Marshal(cases)
	if err != nil {
		t.Fatal(err)
	}
	out, err := ask(t, `print(json.dumps([m.spreads(x["Batch"], x["Tokens"]) for x in json.loads(sys.argv[1])]))`, string(list))
	var all [][][]int
	if err != nil || json.Unmarshal([]byte(out), &all) != nil || len(all) != len(cases) {
		t.Fatalf("%q, %v", out, err)
	}
	for i, x := range cases {
		spreads := all[i]
		if len(spreads) < 6 {
			t.Errorf("%+v: %v", x, spreads)
		}
		uneven := 0
		for _, lengths := range spreads {
			sum, longest, shortest := 0, 0, 1<<30
			for _, n := range lengths {
				sum, longest, shortest = sum+n, max(longest, n), min(shortest, n)
			}
			if len(lengths) != x.Batch || shortest < 1 {
				t.Errorf("%+v: %v", x, lengths)
			}
			if longest == shortest {
				continue
			}
			if uneven++; sum != x.Batch*x.Tokens {
				t.Errorf("%+v: %v have %d tokens", x, lengths, sum)
			}
		}
		if uneven == 0 {
			t.Errorf("%+v: all are even", x)
		}
	}
}

// The script end to end, on a stand-in for PyTorch whose κ is 4: its pool is opened and
// copied from, its steps are timed, and κ is found.
func TestScriptOnStandIn(t *testing.T) {
	d, _, library := opened(t)
	c := config(d)
	o, err := Start(t.Context(), func(ctx context.Context) *exec.Cmd {
		cmd := Torch(python(t), c)(ctx)
		cmd.Env = append(os.Environ(), "PYTHONPATH=testdata", "PYTHONDONTWRITEBYTECODE=1", "CASCADE_TEST_LIBCUDA="+library)
		cmd.Stderr = os.Stderr
		return cmd
	})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if o.Owner != "PyTorch 0 (a stand-in)" {
		t.Errorf("the owner is %q", o.Owner)
	}
	r, err := NewRig(c)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if rows, err := r.From(o); err != nil || len(rows) != 3 {
		t.Errorf("%v, %v", rows, err)
	}
	if rows, err := r.Disturb(o, 4); err != nil || len(rows) != 4 || rows[1].Slower == nil || *rows[1].Slower != 0 {
		t.Errorf("%+v, %v", rows, err)
	}
	a, err := o.Ask(Ask{Spread: true})
	if err != nil || a.Kernel != "PyTorch's flash attention" {
		t.Fatalf("%+v, %v", a, err)
	}
	if k, err := FitKappa(a.Points); err != nil || k.Kappa < 3.99 || k.Kappa > 4.01 || k.StdErr > 0.01 || k.Text() != "4.00 ± 0.00" {
		t.Errorf("%+v, %v", k, err)
	}
	if _, err := o.Ask(Ask{Decode: -1}); err == nil || !strings.Contains(err.Error(), "steps") {
		t.Errorf("%v", err)
	}
}

// A Python without PyTorch, or without a GPU, says so as an owner does.
func TestScriptWithoutTorch(t *testing.T) {
	path := python(t)
	if exec.Command(path, "-c", "import torch").Run() == nil {
		t.Skip("PyTorch is here")
	}
	_, err := Start(t.Context(), Torch(path, Config{Shape: Shape{Regions: 1, BlockBytes: 16, Pool: 1, Plan: 1}}))
	if err == nil || !strings.Contains(err.Error(), "torch") {
		t.Errorf("%v", err)
	}
	if _, err := Start(t.Context(), func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, "/nowhere/python3") }); err == nil {
		t.Error("a program that is not there is started")
	}
}
