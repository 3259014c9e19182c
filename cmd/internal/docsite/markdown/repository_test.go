package markdown

import (
	"testing"
	"testing/fstest"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

func TestResolve(t *testing.T) {
	r := NewRepository(fstest.MapFS{
		"README.md":         {Data: []byte("# Top\n")},
		"docs/a.md":         {Data: []byte("# A\n\n## B c\n")},
		"deploy/README.md":  {Data: []byte("# D\n\n## E\n")},
		"deploy/f.yaml":     {Data: []byte("{}\n")},
		"systemd/a.service": {Data: []byte("")},
	})
	for _, tc := range []struct {
		target string
		want   Target
		err    string
	}{
		{target: "a.md", want: Target{"docs/a.md", ""}},
		{target: "#b-c", want: Target{"docs/a.md", "b-c"}},
		{target: "../README.md#top", want: Target{"README.md", "top"}},
		{target: "../deploy", want: Target{"deploy/README.md", ""}},
		{target: "../deploy/#e", want: Target{"deploy/README.md", "e"}},
		{target: "../deploy/f.yaml", want: Target{"deploy/f.yaml", ""}},
		{target: "../systemd", want: Target{"systemd", ""}},
		{target: "#d", err: `docs/a.md:7: link to "#d": docs/a.md has no heading with the anchor "d"`},
		{target: "../deploy/#b-c", err: `deploy/README.md has no heading`},
		{target: "../deploy/f.yaml#b", err: "deploy/f.yaml has no anchors"},
		{target: "b.md", err: "docs/b.md does not exist in the repository"},
		{target: "../../x/README.md", err: "does not exist in the repository"},
		{target: "/README.md", err: "it is absolute"},
		{target: "", err: "it leads nowhere"},
		{target: ":%", err: "missing protocol scheme"},
	} {
		got, err := r.Resolve("docs/a.md", Link{Line: 7, Target: tc.target})
		if tc.err != "" {
			testkit.WantError(t, err, tc.err)
		} else if testkit.NoError(t, err); got != tc.want {
			t.Errorf("%s leads to %+v, want %+v", tc.target, got, tc.want)
		}
	}
}
