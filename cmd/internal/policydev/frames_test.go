package policydev

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/wasm/calllog"
)

// FuzzReadFrames checks that frames that are read, written and read again are equal, and can be
// compared and described.
func FuzzReadFrames(f *testing.F) {
	for _, k := range deciding() {
		frames, err := randomFrames(1, k, 2)
		testkit.NoError(f, err)
		if b, ok := defaultBuiltin(k); ok {
			for n := range frames {
				r := Recorded(frames)[n]
				testkit.NoError(f, b.Replay(frames[n].Frame, &r))
				frames[n].Answer = &r
			}
		}
		var w bytes.Buffer
		testkit.NoError(f, calllog.Write(&w, frames))
		f.Add(w.Bytes())
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		frames, err := calllog.Read(bytes.NewReader(text))
		if err != nil {
			return
		}
		var w bytes.Buffer
		testkit.NoError(t, calllog.Write(&w, frames))
		again, err := calllog.Read(&w)
		if err != nil {
			t.Fatalf("%v: what was written cannot be read", err)
		}
		a, b := Recorded(frames), Recorded(again)
		if c := Compare(a, b, 1); c.Differ != 0 {
			t.Errorf("%+v", c)
		}
		for n := range a {
			if a[n].Frame != nil && !reflect.DeepEqual(describeDecision(&a[n]), describeDecision(&b[n])) {
				t.Errorf("frame %d", n)
			}
		}
	})
}
