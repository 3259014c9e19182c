package calllog

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// outlier returns a frame of kind outlier.
func outlier(id uint64) []byte {
	return testkit.Must(abi.OutlierCodec.Frame(abi.Call{ID: id}, abi.Loads{Own: 300, Mean: 200}))
}

// selects returns frames with 0, 1, 2 and so on bids.
func selects(n int) (all []Call) {
	for i := range n {
		bids := make([]policies.Bid, i)
		for j := range bids {
			bids[j] = policies.Bid{From: "r", Load: policies.Tokens(7 * j % 5)}
		}
		all = append(all, Call{Frame: testkit.Must(abi.SelectCodec.Frame(abi.Call{ID: uint64(i)}, bids))})
	}
	return all
}

func written(t testing.TB, all []Call) string {
	t.Helper()
	var w bytes.Buffer
	testkit.NoError(t, Write(&w, all))
	return w.String()
}

func TestReadSaysWhere(t *testing.T) {
	first, line, _ := strings.Cut(written(t, []Call{{Frame: outlier(1)}}), "\n")
	first += "\n"
	for text, want := range map[string]string{
		"":                           "line 1: must be",
		`{"format":"other/1"}`:       "line 1: must be",
		first + line + "{":           "line 3: ",
		first + `{"kind":"outlier"}`: `not of kind "outlier"`,
		first + strings.Replace(line, `"outlier"`, `"place"`, 1):                 `not of kind "place"`,
		first + strings.Replace(line, `}`, `,"result":"yes"}`, 1):                `result "yes"`,
		first + strings.Replace(line, `}`, `,"result":"0x1","module":"abc"}`, 1): `module "abc"`,
		first + strings.Replace(line, `}`, `,"cause":"bad luck"}`, 1):            `cause "bad luck"`,
		first + strings.Replace(line, `}`, `,"colour":1}`, 1):                    "colour",
		first + line[:len(line)-1] + strings.Repeat(" ", maxLine) + "\n" + line:  "too long",
	} {
		_, err := Read(strings.NewReader(text))
		testkit.WantError(t, err, want)
	}
}

// module makes new instances of a selector.
func module(t testing.TB, before ...[]byte) (*host.Module, func() (*host.Instance, error)) {
	t.Helper()
	m := testkit.Must(host.Load(context.Background(), host.Config{}, hosttest.Policy(hosttest.LeastLoad(before...)).Encode()))
	t.Cleanup(func() { m.Close() })
	return m, m.Instantiate
}

// TestExpectations checks that a module meets its own recorded answers, fuel included,
// and that another module, or one that counts its calls, does not.
func TestExpectations(t *testing.T) {
	ctx := context.Background()
	m, instance := module(t)
	all, err := Answer(ctx, instance, selects(8))
	if err != nil || len(all) != 8 {
		t.Fatalf("%d answers, %v", len(all), err)
	}
	text := written(t, all)
	if all, err = Golden([]byte(text), m.SHA256()); err != nil {
		t.Fatal(err)
	}
	check := func(instance func() (*host.Instance, error), all []Call) error {
		t.Helper()
		i := testkit.Must(instance())
		defer i.Close()
		return Check(ctx, i, abi.Select, all)
	}
	testkit.NoError(t, check(instance, all))
	_, slower := module(t, hosttest.Loop())
	if err := check(slower, all); !errors.Is(err, ErrUnexpected) || !strings.Contains(err.Error(), "frame 0: not as expected: ") || !strings.Contains(err.Error(), "ticks") {
		t.Errorf("other fuel: %v", err)
	}
	_, other := module(t, hosttest.OneIn(5, hosttest.Result(1, 0), hosttest.Return))
	if err := check(other, all); !errors.Is(err, ErrUnexpected) {
		t.Errorf("another answer: %v", err)
	}
	_, traps := module(t, hosttest.OneIn(5, hosttest.Unreachable))
	var f *host.Fault
	if err := check(traps, all); !errors.As(err, &f) || f.Cause != host.Trapped {
		t.Errorf("none: %v", err)
	}
	// The version of the fuel counts has changed.
	if all, err = Golden([]byte(strings.Replace(text, host.Version, "another/1", 1)), m.SHA256()); err != nil {
		t.Fatal(err)
	}
	if err := check(slower, all); err != nil {
		t.Errorf("fuel of another version: %v", err)
	}
	if err := check(other, all); !errors.Is(err, ErrUnexpected) {
		t.Errorf("another answer, for fuel of another version: %v", err)
	}
	// Unanswered calls are omitted and have no effect on the answers to others.
	if some, err := Answer(ctx, traps, selects(8)); err != nil || len(some) != 6 {
		t.Errorf("%d answers, %v", len(some), err)
	} else if err := check(traps, some); err != nil {
		t.Error(err)
	}
}

func TestGoldenRefuses(t *testing.T) {
	frame := outlier(1)
	for want, f := range map[string]Call{
		"has no answer":         {Frame: frame},
		"no answer":             {Frame: frame, Answer: &host.Record{Kind: abi.Outlier, Frame: frame, Cause: host.Trapped}},
		"by another module, 01": {Frame: frame, Answer: &host.Record{Kind: abi.Outlier, Frame: frame, Module: [32]byte{1}}},
	} {
		_, err := Golden([]byte(written(t, []Call{f})), [32]byte{2})
		testkit.WantError(t, err, want)
	}
	if _, err := Golden([]byte("x"), [32]byte{}); err == nil {
		t.Error("no file is read")
	}
}

// FuzzRead checks that calls that are read, written and read again are equal.
func FuzzRead(f *testing.F) {
	_, instance := module(f)
	all := testkit.Must(Answer(context.Background(), instance, selects(4)))
	f.Add([]byte(written(f, append(all, Call{Frame: outlier(1)}))))
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := Read(bytes.NewReader(text))
		if err != nil {
			return
		}
		once := written(t, all)
		again, err := Read(strings.NewReader(once))
		if err != nil {
			t.Fatalf("%v: what was written cannot be read", err)
		}
		if twice := written(t, again); twice != once || !reflect.DeepEqual(kinds(all), kinds(again)) {
			t.Errorf("%q became %q", once, twice)
		}
	})
}

func kinds(all []Call) (list []abi.Kind) {
	for _, f := range all {
		list = append(list, abi.KindOf(f.Frame))
	}
	return list
}
