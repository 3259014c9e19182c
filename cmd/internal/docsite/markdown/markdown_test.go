package markdown

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

const sample = "# The `book`, and *more*\n\nA [link](../a.md#b) and\n![an image](c.png) and https://example.org/x.\n\n" +
	"## Why ask \"why\"?\n\n## Why ask \"why\"?\n\n| | n |\n|:--- | ---:|\n| [in a cell](#d) | 1 |\n\n" +
	"```sh slow\ncascade up &\n```\n\n- item\n\n  ```yaml file: f.yaml\n  a: <1>\n  ```\n\n```\n```\n\n<script>alert(1)</script>\n"

func TestParse(t *testing.T) {
	d, err := Parse([]byte(sample))
	testkit.NoError(t, err)
	want := &Document{
		Headings: []Heading{{1, "The book, and more", "the-book-and-more"}, {2, `Why ask "why"?`, "why-ask-why"}, {2, `Why ask "why"?`, "why-ask-why-1"}},
		Links:    []Link{{Line: 3, Text: "link", Target: "../a.md#b"}, {Line: 3, Text: "an image", Target: "c.png"}, {Line: 12, Text: "in a cell", Target: "#d"}},
		Blocks:   []Block{{15, "sh", "slow", "cascade up &\n"}, {21, "yaml", "file: f.yaml", "a: <1>\n"}, {}},
	}
	if diff := cmp.Diff(want, d, cmpopts.IgnoreUnexported(Document{})); diff != "" {
		t.Error(diff)
	}
	if !d.HasAnchor("why-ask-why-1") || d.HasAnchor("why") {
		t.Error("HasAnchor is wrong")
	}
	if !d.Links[0].Local() || (Link{Target: "https://example.org/x"}).Local() || (Link{Target: "mailto:a@b"}).Local() {
		t.Error("Local is wrong")
	}
	if _, err := Parse(make([]byte, MaxSize+1)); err == nil {
		t.Error("a source beyond the limit is parsed")
	}
}

// FuzzParse: every source that is not too large is parsed without a panic, and its anchors are unique.
func FuzzParse(f *testing.F) {
	f.Add([]byte(sample))
	f.Add([]byte("# a\n# a\n# a-1\n"))
	f.Fuzz(func(t *testing.T, source []byte) {
		d, err := Parse(source)
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, h := range d.Headings {
			if seen[h.Anchor] {
				t.Errorf("two headings have the anchor %q", h.Anchor)
			}
			seen[h.Anchor] = true
		}
	})
}
