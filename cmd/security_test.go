package cmd_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

var (
	// optional matches what precedes a field of the example that is switched off.
	optional = regexp.MustCompile(`(?m)^(\s*)# (\s*[a-z_]+:)`)
	// address matches an IP address, or a host with a port, with or without a scheme.
	address = regexp.MustCompile(`^([a-z]+://)?(\d+\.\d+\.\d+\.\d+|\[?[0-9a-f]*:[0-9a-f:]*\]?|localhost)(:\d+)?$`)
	// spoken matches the explanation of a field that names where a process listens or connects.
	spoken = regexp.MustCompile(`Unix socket|host:port|IP:port|base URL|\betcd://`)
)

// addressesIn returns the fields of a fleet file, as config.Fields spells them, whose values are addresses.
func addressesIn(path string, value any) (paths []string) {
	switch v := value.(type) {
	case map[string]any:
		for name, inner := range v {
			paths = append(paths, addressesIn(strings.TrimPrefix(path+"."+name, "."), inner)...)
		}
	case []any:
		for _, inner := range v {
			paths = append(paths, addressesIn(path+"[]", inner)...)
		}
	case string:
		if address.MatchString(v) {
			paths = append(paths, strings.TrimSuffix(path, "[]"))
		}
	}
	return paths
}

// unlisted returns the fields whose address the table does not have.
func unlisted(table string, fields []string) (missing []string) {
	for _, f := range fields {
		if !strings.Contains(table, "`"+f+"`") {
			missing = append(missing, f)
		}
	}
	return missing
}

// TestThreatTable checks that SECURITY.md has each address of the fleet file: those of the example, which shows every
// field, and those whose explanation says so.
func TestThreatTable(t *testing.T) {
	text := string(testkit.Must(os.ReadFile("../SECURITY.md")))
	_, table, ok := strings.Cut(text, "\n| address |")
	if !ok {
		t.Fatal("SECURITY.md has no table of addresses")
	}
	var example map[string]any
	testkit.NoError(t, yaml.Unmarshal([]byte(optional.ReplaceAllString(config.Example, "$1$2")), &example))
	fields := addressesIn("", example)
	if len(fields) < 15 {
		t.Fatalf("the example has the addresses %q", fields)
	}
	for _, f := range config.Fields() {
		if spoken.MatchString(f.Meaning) {
			fields = append(fields, f.Path)
		}
	}
	for _, missing := range unlisted(table, fields) {
		t.Errorf("%s is an address that the table of SECURITY.md lacks: say there who may speak, how that is authenticated and encrypted, and what is bounded", missing)
	}
}

// TestThreatTableBites checks that the addresses of new fields would be found.
func TestThreatTableBites(t *testing.T) {
	file := map[string]any{"a": []any{map[string]any{"b": "127.0.0.1:1"}}, "c": map[string]any{"d": "[::1]:2", "e": "tcp://10.0.0.1:3", "f": "text", "g": "10s"}, "h": []any{"10.0.0.7"}}
	missing := unlisted("| `c.d` |", addressesIn("", file))
	if got := fmt.Sprint(len(missing), strings.Contains(strings.Join(missing, " "), "a[].b")); got != "3 true" {
		t.Errorf("missing: %q", missing)
	}
}
