// Package cmd_test holds the checks of the house itself: which folder may
// import which, and where cgo may live. They read the files with go/parser, so
// that no cached result hides a violation.
package cmd_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/cascadeinfer/cascade/"

// arrows says which top-level folders a folder may import besides itself.
// Packages named api hold generated wire types only and may be imported from
// anywhere.
var arrows = map[string][]string{
	"cmd":      {"xds", "wasm", "engine", "migrator", "policies"},
	"xds":      {"policies"},
	"wasm":     {"policies"},
	"engine":   {"policies"},
	"migrator": {"policies"},
	"examples": {"policies", "wasm", "engine"},
	"policies": {},
}

func TestImportsFollowTheArrows(t *testing.T) {
	files := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := filepath.ToSlash(strings.TrimPrefix(path, ".."+string(filepath.Separator)))
		if d.IsDir() {
			if strings.HasPrefix(d.Name(), ".") && path != ".." || d.Name() == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") {
			return nil
		}
		files++
		for _, v := range violations(t, path, rel) {
			t.Error(v)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 30 {
		t.Errorf("only %d files were read: the test looks in the wrong place", files)
	}
}

// violations lists what one file imports against the arrows.
func violations(t *testing.T, path, rel string) []string {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	folder, _, _ := strings.Cut(rel, "/")
	var out []string
	for _, spec := range file.Imports {
		imp, _ := strconv.Unquote(spec.Path.Value)
		if why := forbidden(folder, rel, imp); why != "" {
			out = append(out, rel+" imports "+imp+": "+why)
		}
	}
	return out
}

// forbidden says why a file must not import a path, or "".
func forbidden(folder, rel, imp string) string {
	if imp == "C" && !strings.HasPrefix(rel, "migrator/device/") {
		return `import "C" belongs in migrator/device alone`
	}
	inside, ours := strings.CutPrefix(imp, module)
	if !ours {
		first, _, _ := strings.Cut(imp, "/")
		if folder == "policies" && strings.Contains(first, ".") {
			return "policies use the standard library only"
		}
		if folder == "policies" && !strings.HasSuffix(rel, "_test.go") && !strings.Contains(rel, "policytest/") {
			switch imp {
			case "fmt", "encoding/json", "time", "os", "net", "net/http", "sync", "context":
				return "policies carry no fmt, JSON, clock, I/O or goroutines: every Wasm guest links them"
			}
		}
		return ""
	}
	target, _, _ := strings.Cut(inside, "/")
	if target == folder || inside == "api" || strings.HasSuffix(inside, "/api") {
		return ""
	}
	for _, ok := range arrows[folder] {
		if target == ok {
			return ""
		}
	}
	return "no arrow from " + folder + " to " + target
}

// TestForbiddenBites proves that the check above can fail.
func TestForbiddenBites(t *testing.T) {
	for _, c := range []struct{ rel, imp string }{
		{"xds/fleet/x.go", module + "migrator/frontend"},
		{"xds/fleet/x_test.go", module + "engine/emulator"},
		{"policies/plan.go", "fmt"},
		{"policies/plan_test.go", "github.com/google/go-cmp/cmp"},
		{"engine/emulator/x.go", "C"},
		{"migrator/transport/cuda/x.go", "C"},
		{"cmd/internal/migratord/x_test.go", "C"},
		{"examples/a/main.go", module + "xds/control"},
	} {
		folder, _, _ := strings.Cut(c.rel, "/")
		if forbidden(folder, c.rel, c.imp) == "" {
			t.Errorf("%s may import %s", c.rel, c.imp)
		}
	}
	if why := forbidden("migrator", "migrator/device/cuda/x.go", "C"); why != "" {
		t.Errorf("cgo where it belongs: %s", why)
	}
	if why := forbidden("migrator", "migrator/loadreport/x.go", module+"xds/api"); why != "" {
		t.Errorf("wire types: %s", why)
	}
}
