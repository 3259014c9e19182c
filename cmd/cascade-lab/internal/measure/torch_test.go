package measure

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// python is an interpreter, or a skipped test.
func python(t *testing.T) string {
	t.Helper()
	return testkit.Tool(t, "python3")
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
`, "", "--bytes 0", "--bytes many", "--bytes 8 --batch 2", "--bytes 8 --device -1", "--bytes 8 --what", "--bytes 9")
	if err != nil || strings.Contains(out, "taken") || strings.Count(out, "code 2") != 7 || strings.Count(out, "usage:") != 7 {
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
	o, err := StartOwner(t.Context(), func(ctx context.Context) *exec.Cmd {
		cmd := TorchCommand(python(t), c)(ctx)
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
	r := newBench(t, c)
	if rows, err := r.MeasurePulls(o); err != nil || len(rows) != 3 {
		t.Errorf("%v, %v", rows, err)
	}
	if rows, err := r.MeasureInterference(o, 4); err != nil || len(rows) != 5 || rows[1].Slower == nil || *rows[1].Slower != 0 {
		t.Errorf("%+v, %v", rows, err)
	} else if goals := EvaluateGoals(rows); goals[len(goals)-1].Text != "goal: decode slow-down ≤ 1 %: +0.0 % by the copy engines, of PyTorch 0 (a stand-in), met" {
		t.Errorf("%+v", goals)
	}
	a, err := o.Do(Request{Spread: true})
	if err != nil || a.Kernel != "PyTorch's flash attention" {
		t.Fatalf("%+v, %v", a, err)
	}
	if k, err := FitKappa(a.Points); err != nil || k.Kappa < 3.99 || k.Kappa > 4.01 || k.StdErr > 0.01 || k.Text() != "4.00 ± 0.00" {
		t.Errorf("%+v, %v", k, err)
	}
	if _, err := o.Do(Request{Decode: -1}); err == nil || !strings.Contains(err.Error(), "steps") {
		t.Errorf("%v", err)
	}
}

// A kernel that fails in the midst of a spread leaves none of its times in it.
func TestScriptKernelsAreNotMixed(t *testing.T) {
	out, err := ask(t, `
class Two(m.Attention):
    def __init__(self, first, second):
        self.torch = type("torch", (), {"cuda": type("cuda", (), {"synchronize": staticmethod(lambda: None)})})
        self.made = {"first": 0, "second": 0}
        self.tries = [("first", self.maker("first", 1, first)), ("second", self.maker("second", 2, second))]
    def maker(self, name, took, last):
        def make(lengths):
            self.made[name] += 1
            if self.made[name] > last:
                raise RuntimeError("out of memory")
            return lambda: took
        return make
    def time(self, run, times):
        return [run()] * times

a = m.arguments(["--bytes", "8"])
n = len(m.spreads(a.batch, a.tokens))
for first, second in (n, 0), (0, n), (1, n), (n - 1, n), (n - 1, n + 1):
    try:
        got = m.answer(Two(first, second + 1), a, {"spread": True})
        print(got["kernel"], len(got["points"]) == n, sorted({p["seconds"] for p in got["points"]}), len({(p["tokens"], p["longest"]) for p in got["points"]}) == len({(sum(s), max(s)) for s in m.spreads(a.batch, a.tokens)}))
    except Exception as e:
        print(e)
try:
    print(m.answer(Two(3, 3), a, {"spread": True}))
except Exception as e:
    print(e)
`)
	want := "first True [1] True\n" + strings.Repeat("second True [2] True\n", 4) + "no attention kernel works here: second: out of memory\n"
	if err != nil || out != want {
		t.Errorf("%s%v", out, err)
	}
}

// A Python without PyTorch, or without a GPU, says so as an owner does.
func TestScriptWithoutTorch(t *testing.T) {
	path := python(t)
	if exec.Command(path, "-c", "import torch").Run() == nil {
		testkit.Skip(t, testkit.Unavailable{What: "this python3 has PyTorch", Remedy: "choose a python3 without PyTorch"})
	}
	_, err := StartOwner(t.Context(), TorchCommand(path, Config{Shape: Shape{Regions: 1, BlockBytes: 16, Pool: 1, Plan: 1}}))
	if err == nil || !strings.Contains(err.Error(), "torch") {
		t.Errorf("%v", err)
	}
	if _, err := StartOwner(t.Context(), func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, "/nowhere/python3") }); err == nil {
		t.Error("a program that is not there is started")
	}
}
