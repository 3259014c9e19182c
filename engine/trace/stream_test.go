package trace

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestSkipInvalid reads a trace with a bad number, a zero output, and a line out of order.
func TestSkipInvalid(t *testing.T) {
	const text = "arrival_ms,input_tokens,output_tokens\n0,10,5\n100,x,5\n200,10,0\n150,7,7\n90000,8,8\n80,9,9\n90001,1,1\n"
	open := func() (Source, error) { return NewReader(strings.NewReader(text), "t.csv") }
	for _, shape := range []Shape{{}, {Rate: 3}} {
		from, err := shape.Stream(open)
		testkit.NoError(t, err)
		var skipped []string
		valid := SkipInvalid(from, func(e *Error) { skipped = append(skipped, e.Error()) })
		got, err := Collect(valid)
		testkit.NoError(t, err)
		if _, err := valid.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("after the end: %v", err)
		}
		want := []string{
			`t.csv:3: input_tokens: "x" is not a whole number of tokens`,
			"t.csv:4: output_tokens: 0 tokens is not in 1 … 16777216; drop the line or correct it",
			"t.csv:7: arrival_ms: a request arrives at 80ms, after one at 1m30s; sort the trace by arrival",
		}
		if len(got) != 4 || !slices.Equal(skipped, want) {
			t.Errorf("%d requests, skipped %q; want 4 and %q", len(got), skipped, want)
		}
		if from, err = shape.Stream(open); err != nil {
			t.Fatal(err)
		}
		if _, err = from.Next(); err != nil && err.Error() != want[0] {
			t.Errorf("without skipping: %v", err)
		}
	}
}
