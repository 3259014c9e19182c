package opa_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/guesttest"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/opa"
	"github.com/cascadeinfer/cascade/wasm/rego"
)

func build(t testing.TB, rules string) []byte {
	t.Helper()
	guesttest.SkipUnderRace(t)
	return testkit.Must(rego.Build(context.Background(), map[string]string{"x.rego": "package cascade.plan\n" + rules}))
}

func change(names int) abi.Change {
	s := policies.Stage{High: policies.Unbounded}
	for n := range names {
		s.Replicas = append(s.Replicas, policies.ReplicaID(fmt.Sprintf("replica-%d", n)))
	}
	return abi.Change{Next: policies.Plan{Model: "m", Epoch: 1, Stages: []policies.Stage{s}}}
}

const simple = `deny contains {"code": 7, "stage": 5, "detail": "too many"} if count(input.after.stages[0].replicas) > data.most

warn contains {"code": 8, "detail": "many"} if count(input.after.stages[0].replicas) > data.many
`

func TestGuard(t *testing.T) {
	var log bytes.Buffer
	m := guesttest.Load(t, build(t, simple), host.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if k := m.Kinds(); len(k) != 2 || !m.Decides(abi.Guard) || !m.Decides(abi.Configure) {
		t.Errorf("it decides %v", k)
	}
	i := guesttest.Start(t, m)
	ask := func(names int, want bool) {
		t.Helper()
		d, denied, err := i.Guard(abi.Call{}, change(names))
		if err != nil || denied != want || denied && d != (abi.Denial{Code: 7, Stage: -1, Detail: "too many"}) {
			t.Errorf("%d replicas: %+v, %v, %v", names, d, denied, err)
		}
	}
	ask(50, false) // no data, no limit
	for range 3 {  // again and again
		testkit.NoError(t, i.Configure(abi.Call{}, []byte(`{"most": 9, "many": 5}`)))
		ask(10, true)
		ask(9, false)
		ask(1500, true) // a larger frame: the arena moves
		ask(5, false)
	}
	if n := strings.Count(log.String(), "warning 8, stage -1: many"); n != 3 {
		t.Errorf("%d warnings in\n%s", n, &log)
	}
	// Data that is not an object is refused and changes nothing.
	for _, config := range []string{"[]", "{", "null", `{"most": 1} x`} {
		err := i.Configure(abi.Call{}, []byte(config))
		var f *host.Fault
		if !errors.As(err, &f) || f.Cause != host.Refused || !strings.Contains(f.Text, "JSON object") {
			t.Errorf("%s: %v", config, err)
		}
	}
	ask(10, true)
	ask(9, false)
}

// TestAllocs checks that allowed plans cause no allocations, and that the module's memory does
// not grow.
func TestAllocs(t *testing.T) {
	i := guesttest.Start(t, guesttest.Load(t, build(t, `deny contains {"code": 1} if input.moves > 3`), host.Config{}))
	c := change(8)
	c.Now = c.Next
	call := func() {
		if _, denied, err := i.Guard(abi.Call{}, c); denied || err != nil {
			t.Fatal(denied, err)
		}
	}
	call()
	before, _ := i.Memory()
	if n := testing.AllocsPerRun(2000, call); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if after, _ := i.Memory(); after != before {
		t.Errorf("the memory grew from %d to %d bytes", before, after)
	}
}

// TestBounded checks that an endless evaluation ends at the same tick on every host, that one
// that exhausts memory ends as well, and that neither instance answers again.
func TestBounded(t *testing.T) {
	const endless = `deny contains {"code": 1} if { some i in numbers.range(1, 2000); some j in numbers.range(1, 100000); i * j == -1 }`
	var used [2]int64
	m := guesttest.Load(t, build(t, endless), host.Config{})
	for n := range used {
		i := guesttest.Start(t, m)
		_, _, err := i.Guard(abi.Call{}, change(1))
		if c := host.CauseOf(err); c != host.OutOfFuel && c != host.Trapped {
			t.Errorf("%v", err)
		}
		used[n] = i.Fuel()
		if _, _, err := i.Guard(abi.Call{}, change(1)); host.CauseOf(err) != host.Dead {
			t.Errorf("it answers: %v", err)
		}
	}
	if used[0] != used[1] || used[0] < 100_000 {
		t.Errorf("%v ticks", used)
	}
	limits := [abi.NumKinds]host.Limit{abi.Guard: {Fuel: 2000}}
	i := guesttest.Start(t, guesttest.Load(t, build(t, endless), host.Config{Limits: limits}))
	if _, _, err := i.Guard(abi.Call{}, change(1)); host.CauseOf(err) != host.OutOfFuel {
		t.Errorf("with 2000 ticks: %v", err)
	}
}

// TestAnswersThatAreNone checks that an answer that is not a set of findings permits nothing.
func TestAnswersThatAreNone(t *testing.T) {
	for rules, want := range map[string]string{
		"deny := true": "not a set", "deny contains \"no\"": "is not an object", "deny := x if { x := input.nothing }": "no answer",
		"deny contains {\"code\": -1}": "code", "deny contains {\"code\": i} if some i in numbers.range(1, 65)": "65 findings",
		"deny := set()\n\nwarn contains 5": "is not an object",
	} {
		i := guesttest.Start(t, guesttest.Load(t, build(t, rules), host.Config{}))
		for range 2 { // the instance stays alive
			_, denied, err := i.Guard(abi.Call{}, change(1))
			var f *host.Fault
			if !errors.As(err, &f) || denied || f.Cause != host.Refused || !strings.Contains(f.Text, want) {
				t.Errorf("%s: %v, %v; want %q", rules, denied, err, want)
			}
		}
	}
}

func TestFrames(t *testing.T) {
	i := guesttest.Start(t, guesttest.Load(t, build(t, `deny contains {"code": 1} if input.moves > 3`), host.Config{}))
	frame := testkit.Must(abi.GuardCodec.Frame(abi.Call{}, change(4)))
	for at := range frame { // no content of a frame may crash the host
		for _, x := range []byte{1, 0x80, 0xff} {
			bad := bytes.Clone(frame)
			bad[at] ^= x
			var r host.Record
			if err := i.Replay(bad, &r); err != nil && host.CauseOf(err).Fatal() {
				i.Close()
				i = guesttest.Start(t, guesttest.Load(t, build(t, `deny contains {"code": 1} if input.moves > 3`), host.Config{}))
			}
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	good := build(t, `deny contains {"code": 1} if input.moves > 3`)
	replaced := func(old, new string) []byte {
		if len(old) != len(new) || !bytes.Contains(good, []byte(old)) {
			t.Fatal(old)
		}
		return bytes.ReplaceAll(good, []byte(old), []byte(new))
	}
	for want, code := range map[string][]byte{
		"no entry point cascade/plan/deny": replaced("cascade/plan/deny", "cascade/plan/duty"),
		"does not export opa_eval":         replaced("\x08opa_eval\x00", "\x08opa_evil\x00"),
		"version 1.0":                      replaced("opa_wasm_abi_minor_version", "opa_wasm_abi_major_version"),
		"memory":                           replaced("\x03env\x06memory", "\x03env\x06memoir"),
		"is not on the list":               replaced("\x03env\x09opa_abort", "\x03env\x09opa_adopt"),
	} {
		m, err := host.Load(context.Background(), host.Config{}, code)
		if err == nil {
			m.Close()
		}
		testkit.WantError(t, err, want)
	}
	_, err := host.Load(context.Background(), host.Config{Kinds: []abi.Kind{abi.Select}}, good)
	testkit.WantError(t, err, "guard, not bid-select")
	for n := 0; n < len(good); n += 1 + n/50 { // cut short anywhere
		if m, err := host.Load(context.Background(), host.Config{}, good[:n]); err == nil {
			m.Close()
			t.Errorf("%d bytes of %d are a module", n, len(good))
		}
	}
	if opa.Is(nil) || opa.Is([]byte("\x00asm\x01\x00\x00\x00")) || !opa.Is(good) {
		t.Error("what is OPA's?")
	}
}

func FuzzAdapt(f *testing.F) {
	good := build(f, `deny contains {"code": 1} if input.moves > 3`)
	f.Add(good[:4096])
	f.Add([]byte("\x00asm\x01\x00\x00\x00\x02\x0f\x01\x03env\x06memory\x02\x00\x02"))
	f.Fuzz(func(t *testing.T, b []byte) {
		opa.Is(b)
		out, err := opa.Adapt(b)
		if (err == nil) != (out != nil) || len(out) > len(b)+64 {
			t.Errorf("%d bytes became %d, %v", len(b), len(out), err)
		}
	})
}
