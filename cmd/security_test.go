package cmd_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
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

// listens matches the usage of a flag that names where a process listens or connects.
var listens = regexp.MustCompile(`host:port|IP:port|\bto (serve|listen) on\b`)

// flagInTable matches a flag in the first cell of a row.
var flagInTable = regexp.MustCompile("`(?:[a-z-]+ )*--([a-z-]+)`")

// flagsIn returns the flags that a source file of a command declares, with their usages; "" for one that is no literal.
func flagsIn(t *testing.T, path string) map[string]string {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	testkit.NoError(t, err)
	out := make(map[string]string)
	ast.Inspect(file, func(n ast.Node) bool {
		if c, ok := n.(*ast.ValueSpec); ok && len(c.Values) == 1 && strings.HasSuffix(c.Names[0].Name, "Flag") {
			if name, ok := c.Values[0].(*ast.BasicLit); ok {
				out[testkit.Must(strconv.Unquote(name.Value))] = "" // declared by its constant
			}
		}
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) < 4 {
			return true
		}
		if f, ok := call.Fun.(*ast.SelectorExpr); !ok || !strings.HasPrefix(f.Sel.Name, "String") || !strings.HasSuffix(f.Sel.Name, "Var") {
			return true
		}
		if name, ok := call.Args[1].(*ast.BasicLit); ok {
			usage := ""
			if text, ok := call.Args[3].(*ast.BasicLit); ok {
				usage = testkit.Must(strconv.Unquote(text.Value))
			}
			out[testkit.Must(strconv.Unquote(name.Value))] = usage
		}
		return true
	})
	return out
}

// TestThreatTableHasFlags checks that SECURITY.md has each address that a command takes as a flag: the flag of the
// command, the flag of all commands, or the field of the fleet file that its usage names. It has no flag that is gone.
func TestThreatTableHasFlags(t *testing.T) {
	text := string(testkit.Must(os.ReadFile("../SECURITY.md")))
	checked, declared := 0, make(map[string]bool)
	for _, pattern := range []string{"cascade/*.go", "cascade-kube/*.go", "internal/*/*.go"} {
		for _, path := range testkit.Must(filepath.Glob(pattern)) {
			command := strings.TrimSuffix(filepath.Base(path), ".go")
			for name, usage := range flagsIn(t, path) {
				declared[name] = true
				if !listens.MatchString(usage) {
					continue
				}
				checked++
				known := strings.Contains(text, "`--"+name+"`") || strings.Contains(text, strings.ReplaceAll(command, "_", "-")+" --"+name+"`")
				for _, field := range regexp.MustCompile(`\b[a-z]+\.[a-z]+\b`).FindAllString(usage, -1) {
					known = known || strings.Contains(text, "`"+field+"`")
				}
				if !known {
					t.Errorf("%s: --%s is an address that the table of SECURITY.md lacks: say there who may speak, how that is authenticated and encrypted, and what is bounded", path, name)
				}
			}
		}
	}
	if checked < 8 {
		t.Errorf("only %d flags are addresses", checked)
	}
	for line := range strings.Lines(text) {
		cell, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " |")
		for _, flag := range flagInTable.FindAllStringSubmatch(cell, -1) {
			if strings.HasPrefix(line, "| ") && !declared[flag[1]] {
				t.Errorf("the table of SECURITY.md has %s, a flag that no command has", flag[0])
			}
		}
	}
}
