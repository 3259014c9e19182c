package publish

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

func TestRedact(t *testing.T) {
	real := testkit.Must(os.ReadFile(filepath.Join("testdata", "refusal.txt"))) // from Envoy 1.40, for a route without an action
	key := strings.Repeat("A", 300)
	for _, x := range []struct{ text, want string }{
		{"", "no reason given"},
		{"Only a single wildcard domain is permitted in route r", "Only a single wildcard domain is permitted in route r"},
		{"bad\nroute \x00\xff", "bad route ?"},
		{string(real), "the proxy quotes the resource and gives no reason; see its log"},
		{`goo.gle/debugonly  name: "r" virtual_hosts { name: "x" } weight: 3 Proto constraint validation failed (RouteValidationError.Action: value is required)`,
			"Proto constraint validation failed (RouteValidationError.Action: value is required)"},
		{`Proto constraint validation failed (X): goo.gle/debugonly name: "r" key: "` + key + `"`, "Proto constraint validation failed (X)"},
		{`Failed: {private_key {inline_string: "` + key + `"}} at the end`, "Failed: {…} at the end"},
		{`Failed: {private_key { inline_string: "` + key, "Failed: {…"},
		{`cannot read "` + key + `" of "x"`, `cannot read "…" of "x"`},
		{`cannot read "` + key, `cannot read "…"`},
		{`cannot read "` + key[:maxQuoted] + `"`, `cannot read "` + key[:maxQuoted] + `"`},
		{strings.Repeat("é", maxErrorText/2), strings.Repeat("é", maxErrorText/2)},
		{"x" + strings.Repeat("é", maxErrorText/2), "x" + strings.Repeat("é", maxErrorText/2-1) + "…"},
		{"goo.gle/debugproto", "the proxy quotes the resource and gives no reason; see its log"},
	} {
		got := redact(x.text)
		if got != x.want {
			t.Errorf("%.80q:\n got %q\nwant %q", x.text, got, x.want)
		}
	}
	if got := redact(strings.Repeat("no ", 1000)); len(got) > maxErrorText+len("…") {
		t.Errorf("%d bytes", len(got))
	}
}

// FuzzRedact checks that any redacted text is short, has one line, and shows no
// long secret.
func FuzzRedact(f *testing.F) {
	f.Add(`goo.gle/debugonly name: "r" {`)
	f.Add("a\nb{}}}\"\"\"")
	f.Fuzz(func(t *testing.T, text string) {
		got := redact(text)
		if got == "" || len(got) > maxErrorText+len("…") || strings.ContainsAny(got, "\n\r\x00") {
			t.Errorf("%q", got)
		}
	})
}
