package openai

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// pieces is a reader that returns its text in pieces of n bytes.
type pieces struct {
	text string
	n    int
}

func (p *pieces) Read(b []byte) (int, error) {
	if p.text == "" {
		return 0, io.EOF
	}
	n := copy(b, p.text[:min(p.n, len(p.text))])
	p.text = p.text[n:]
	return n, nil
}

// split is a simple oracle: it reads single lines, and ends an event at an empty line.
func split(text string) (raws, datas []string, whole bool) {
	raw, fields := "", []string(nil)
	for text != "" {
		line, rest, ended := strings.Cut(text, "\n")
		if !ended {
			return raws, datas, false
		}
		raw += line + "\n"
		text = rest
		line = strings.TrimSuffix(line, "\r")
		if line == "" {
			raws, datas = append(raws, raw), append(datas, strings.Join(fields, "\n"))
			raw, fields = "", nil
			continue
		}
		if name, value, _ := strings.Cut(line, ":"); name == "data" {
			fields = append(fields, strings.TrimPrefix(value, " "))
		}
	}
	return raws, datas, raw == ""
}

func compare(t *testing.T, text string, n int) {
	t.Helper()
	raws, datas, whole := split(text)
	r := NewReader(&pieces{text, n})
	for i, raw := range raws {
		ev, err := r.Next()
		if err != nil || string(ev.Raw) != raw || string(ev.Data) != datas[i] {
			t.Fatalf("event %d in pieces of %d: %q, data %q, %v; want %q, data %q", i, n, ev.Raw, ev.Data, err, raw, datas[i])
		}
		if ev.at >= 0 && string(ev.Raw[ev.at:ev.at+len(ev.Data)]) != string(ev.Data) {
			t.Fatalf("event %d: data is not at %d of %q", i, ev.at, ev.Raw)
		}
	}
	want := io.EOF
	if !whole {
		want = io.ErrUnexpectedEOF
	}
	for range 2 {
		if _, err := r.Next(); err != want {
			t.Fatalf("in pieces of %d the end is %v, want %v", n, err, want)
		}
	}
}

var streams = []string{
	"",
	"data: a\n\n",
	"data: a\n\ndata: b\n\ndata: [DONE]\n\n",
	"data: a\r\n\r\ndata:b\r\n\r\n",
	": ping\n\ndata: a\n\n",
	"event: x\nid: 3\ndata: one\ndata: two\nretry: 5\n\n",
	"\n\n\r\n\ndata\n\ndatum: no\n\n",
	"data: cut",
	"data: cut\n",
	"data: " + strings.Repeat("long ", 5000) + "\n\ndata: short\n\n",
}

func TestReaderShrinks(t *testing.T) {
	r := NewReader(strings.NewReader(streams[len(streams)-1] + "data: x\n\n"))
	for range 2 {
		testkit.Must(r.Next())
	}
	r.Next()
	if cap(r.buf) > smallEvent {
		t.Errorf("after a large event the buffer keeps %d bytes", cap(r.buf))
	}
}

func TestReaderBounds(t *testing.T) {
	r := NewReader(io.MultiReader(strings.NewReader("data: "), endless('x')))
	if _, err := r.Next(); !errors.Is(err, ErrEventTooLarge) {
		t.Errorf("an endless line gives %v", err)
	}
	broken := errors.New("cut")
	r = NewReader(io.MultiReader(strings.NewReader("data: a\n\ndata: b"), iotest.ErrReader(broken)))
	testkit.Must(r.Next())
	if _, err := r.Next(); err != broken {
		t.Errorf("a broken source gives %v, want its own error", err)
	}
}

type endless byte

func (e endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(e)
	}
	return len(b), nil
}

func TestReaderAllocations(t *testing.T) {
	event := "data: " + strings.Repeat("x", 300) + "\n\n"
	r := NewReader(&loop{text: []byte(event)})
	testkit.Must(r.Next())
	if n := testing.AllocsPerRun(1000, func() { r.Next() }); n != 0 {
		t.Errorf("an event costs %.1f allocations, want none", n)
	}
}

// loop is a reader that repeats its text, one copy per read.
type loop struct{ text []byte }

func (l *loop) Read(b []byte) (int, error) { return copy(b, l.text), nil }

// FuzzReader compares the reader with one that reads lines, in pieces of any size.
func FuzzReader(f *testing.F) {
	for _, s := range streams {
		for _, n := range []int{1, 2, 3, 7, 1000, 1 << 20} {
			f.Add(s, n)
		}
	}
	f.Fuzz(func(t *testing.T, text string, n int) { compare(t, text, max(1, n)) })
}

func FuzzChunk(f *testing.F) {
	for _, s := range []string{tokenEvent, chatEvent, usageEvent, "data: [DONE]\n\n", "data: {\"error\":{\"code\":400}}\n\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r := NewReader(strings.NewReader(text))
		for {
			ev, err := r.Next()
			if err != nil {
				return
			}
			var c Chunk
			if c.Parse(ev) != nil {
				continue
			}
			if got := c.Append(nil, Edit{}); !bytes.Equal(got, ev.Raw) {
				t.Fatalf("an edit of nothing changes %q to %q", ev.Raw, got)
			}
			ids, err := c.AppendIDs(nil)
			if err == nil && len(ids) != c.Tokens && c.nIDs > 0 && !bytes.ContainsAny(c.ids[0].of(ev.Data), `{"`) {
				t.Fatalf("%q has %d ids and counts %d", ev.Raw, len(ids), c.Tokens)
			}
			edited := c.Append(nil, Edit{HideIDs: true, HideUsage: true, Identity: &Identity{ID: []byte(`"i"`), Created: []byte("1"), Model: []byte(`"m"`), Fingerprint: []byte(`"p"`)}, Fingerprint: []byte(`"f"`)})
			var again Chunk
			ev2, err := NewReader(bytes.NewReader(edited)).Next()
			if err != nil {
				t.Fatalf("%q is edited to %q: %v", ev.Raw, edited, err)
			}
			if err := again.Parse(ev2); err != nil {
				t.Fatalf("%q is edited to %q: %v", ev.Raw, edited, err)
			}
			if again.Tokens != 0 || again.Choices != c.Choices || again.Finish != c.Finish {
				t.Fatalf("%q is edited to %q", ev.Raw, edited)
			}
			if d := c.Clone(); !bytes.Equal(d.Append(nil, Edit{HideIDs: true}), c.Append(nil, Edit{HideIDs: true})) {
				t.Fatalf("a clone of %q differs", ev.Raw)
			}
		}
	})
}
