package trace

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

func zipped(t testing.TB, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	testkit.NoError(t, w.Close())
	return b.String()
}

// TestRead runs testdata/*.txt (package datadriven; -rewrite rewrites the expected output): the
// requests of a trace, or the error. Each trace is read gzipped, too.
//
//	read [crlf]    and the file
func TestRead(t *testing.T) {
	for _, file := range []string{"testdata/read.txt", "testdata/errors.txt"} {
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			text := d.Input
			if d.HasArg("crlf") {
				text = strings.ReplaceAll(text, "\n", "\r\n")
			}
			got, err := Read(strings.NewReader(text), "t.csv")
			again, errAgain := Read(strings.NewReader(zipped(t, text)), "t.csv")
			if !cmp.Equal(got, again) || fmt.Sprint(err) != fmt.Sprint(errAgain) {
				d.Fatalf(t, "gzipped: %v, %v", again, errAgain)
			}
			if err != nil {
				return err.Error() + "\n"
			}
			var out strings.Builder
			for _, r := range got {
				fmt.Fprintln(&out, r.At, r.Input, r.Output, r.Prefix)
			}
			return out.String()
		})
	}
}

func TestReadCaps(t *testing.T) {
	var bad *Error
	long := "arrival_ms,input_tokens,output_tokens\n0,1,1\n" + strings.Repeat("1", maxLine+1)
	if _, err := Read(strings.NewReader(long), "t"); !errors.As(err, &bad) || bad.Line != 3 {
		t.Errorf("a long line gives %v", err)
	}
	if _, err := Read(strings.NewReader("\x1f\x8bnot gzip at all"), "t"); err == nil || !strings.HasPrefix(err.Error(), "t: ") {
		t.Errorf("a broken gzip header gives %v", err)
	}
	if _, err := Read(strings.NewReader(""), "t"); !errors.Is(err, ErrEmpty) {
		t.Errorf("an empty file gives %v", err)
	}
}

func TestWriteReadsBack(t *testing.T) {
	mixed, _ := Named("mixed")
	chat, _ := Named("chat")
	lengthsOnly := []Request{{At: NoArrival, Input: 3, Output: 4}}
	for _, g := range []Generator{mixed, chat} {
		g.Requests = 200
		want, err := g.Generate()
		testkit.NoError(t, err)
		for i := range want {
			want[i].At = want[i].At.Round(time.Microsecond)
		}
		roundTrip(t, want)
	}
	roundTrip(t, lengthsOnly)
}

func roundTrip(t *testing.T, want []Request) {
	t.Helper()
	var b bytes.Buffer
	testkit.NoError(t, Write(&b, want))
	got, err := Read(&b, "t")
	testkit.NoError(t, err)
	for i := range got {
		if len(got[i].Prefix) == 0 {
			got[i].Prefix = nil
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// holds checks the invariants of a trace.
func holds(requests []Request) error {
	for i, r := range requests {
		switch {
		case r.Input < 1 || r.Input > MaxTokens || r.Output < 1 || r.Output > MaxTokens:
			return fmt.Errorf("request %d: lengths %d, %d", i, r.Input, r.Output)
		case (r.At < 0) != (requests[0].At < 0) || r.At < 0 && r.At != NoArrival || r.At > maxArrival:
			return fmt.Errorf("request %d: arrival %v", i, r.At)
		case i > 0 && r.At < requests[i-1].At:
			return fmt.Errorf("request %d: arrives before the one before it", i)
		case len(r.Prefix) > blocks(r.Input):
			return fmt.Errorf("request %d: %d ids for %d tokens", i, len(r.Prefix), r.Input)
		}
	}
	return nil
}

func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		"arrival_ms,input_tokens,output_tokens\n0,2290,316\n-1,1,1\n",
		"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n",
		"arrival_ms,input_tokens,output_tokens\n-0.5,1,1\n1e300,NaN,1\n",
		`{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}`,
		`{"timestamp": 1e19, "input_length": -1, "output_length": 1, "hash_ids": null}`,
		"{}\n[]",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		requests, err := Read(bytes.NewReader(text), "t")
		if err != nil {
			return
		}
		testkit.NoError(t, holds(requests))
		if _, err := (Shape{Rate: 2, Spread: time.Second}).Apply(requests); err != nil {
			t.Fatal(err)
		}
	})
}
