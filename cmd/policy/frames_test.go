package policy

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/wasm/abi"
)

const framesHeadLine = `{"format":"cascade-policy-frames/1"}` + "\n"

func TestReadFramesSaysWhere(t *testing.T) {
	frames, err := randomFrames(1, abi.Outlier, 1)
	if err != nil {
		t.Fatal(err)
	}
	var good bytes.Buffer
	if err := WriteFrames(&good, frames); err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(good.String(), "\n")
	for text, want := range map[string]string{
		"":                                    "line 1: want",
		`{"format":"other/1"}`:                "line 1: want",
		framesHeadLine + line + "{":           "line 3: ",
		framesHeadLine + `{"kind":"outlier"}`: `not of kind "outlier"`,
		framesHeadLine + strings.Replace(line, `"outlier"`, `"place"`, 1):                     `not of kind "place"`,
		framesHeadLine + strings.Replace(line, `}`, `,"result":"yes"}`, 1):                    `result "yes"`,
		framesHeadLine + strings.Replace(line, `}`, `,"result":"0x1","module":"abc"}`, 1):     `module "abc"`,
		framesHeadLine + strings.Replace(line, `}`, `,"cause":"bad luck"}`, 1):                `cause "bad luck"`,
		framesHeadLine + strings.Replace(line, `}`, `,"colour":1}`, 1):                        "colour",
		framesHeadLine + line[:len(line)-1] + strings.Repeat(" ", maxFrameLine) + "\n" + line: "too long",
	} {
		if _, err := ReadFrames(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v, want %q", text, err, want)
		}
	}
}

// FuzzReadFrames holds that whatever is read is written and read again alike, and
// can be compared and shown.
func FuzzReadFrames(f *testing.F) {
	for _, k := range deciding() {
		frames, err := randomFrames(1, k, 2)
		if err != nil {
			f.Fatal(err)
		}
		if b, ok := usual(k); ok {
			for n := range frames {
				r := Recorded(frames)[n]
				if err := (native{b}).Replay(frames[n].Frame, &r); err != nil {
					f.Fatal(err)
				}
				frames[n].Answer = &r
			}
		}
		var w bytes.Buffer
		if err := WriteFrames(&w, frames); err != nil {
			f.Fatal(err)
		}
		f.Add(w.Bytes())
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		frames, err := ReadFrames(bytes.NewReader(text))
		if err != nil {
			return
		}
		var w bytes.Buffer
		if err := WriteFrames(&w, frames); err != nil {
			t.Fatal(err)
		}
		again, err := ReadFrames(&w)
		if err != nil {
			t.Fatalf("%v: what was written cannot be read", err)
		}
		a, b := Recorded(frames), Recorded(again)
		if c := Compare(a, b, 1); c.Differ != 0 {
			t.Errorf("%+v", c)
		}
		for n := range a {
			if a[n].Frame != nil && !reflect.DeepEqual(decision(&a[n]), decision(&b[n])) {
				t.Errorf("frame %d", n)
			}
		}
	})
}
