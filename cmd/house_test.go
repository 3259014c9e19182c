// Package cmd_test checks the structure of the repository: which folder may
// import which, what is public, and where cgo may live. The checks read the
// files with go/parser, so that no cached result hides a violation.
package cmd_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

const module = "github.com/cascadeinfer/cascade/"

// arrows lists the top-level folders that a folder may import besides itself.
// Packages named api hold generated wire types only and may be imported from
// anywhere.
var arrows = map[string][]string{
	"cmd":      {"xds", "wasm", "engine", "migrator", "internal", "policies"},
	"xds":      {"internal", "policies"},
	"wasm":     {"internal", "policies"},
	"engine":   {"internal", "policies"},
	"migrator": {"internal", "policies"},
	"examples": {"policies", "wasm", "engine"},
	"internal": {"policies"},
	"policies": {},
}

// source is one Go file of the repository.
type source struct {
	path    string // relative to the repository's root, with slashes
	pkg     string // the name in its package clause
	imports []string
}

// folder returns the top-level folder of the file.
func (s source) folder() string {
	folder, _, _ := strings.Cut(s.path, "/")
	return folder
}

// walkGo calls visit with the path of every Go file of the repository.
func walkGo(visit func(file string) error) error {
	return filepath.WalkDir("..", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && file != "..":
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(file, ".go"):
			return nil
		}
		return visit(file)
	})
}

// sources parses the imports of every Go file but those in testdata, once for all tests.
var sources = sync.OnceValues(func() (out []source, err error) {
	err = walkGo(func(file string) error {
		if slices.Contains(strings.Split(filepath.ToSlash(file), "/"), "testdata") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		s := source{path: filepath.ToSlash(strings.TrimPrefix(file, ".."+string(filepath.Separator))), pkg: parsed.Name.Name}
		for _, spec := range parsed.Imports {
			imp, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			s.imports = append(s.imports, imp)
		}
		out = append(out, s)
		return nil
	})
	if err == nil && len(out) < 30 {
		err = fmt.Errorf("read only %d files: the test looks in the wrong place", len(out))
	}
	return out, err
})

func readSources(t *testing.T) []source {
	t.Helper()
	all, err := sources()
	testkit.NoError(t, err)
	return all
}

// engines matches the name of an engine.
var engines = regexp.MustCompile(`(?i)vllm|sglang|tensorrt`)

// TestEnginesStandInOnePlace checks that the migrator names engines in their dialects only.
func TestEnginesStandInOnePlace(t *testing.T) {
	found := 0
	err := walkGo(func(file string) error {
		slashed := filepath.ToSlash(file)
		if !strings.HasPrefix(slashed, "../migrator/") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if name := engines.Find(text); name != nil && strings.HasPrefix(slashed, "../migrator/dialect/") {
			found++
		} else if name != nil {
			t.Errorf("%s names %s: what one engine does belongs to its dialect", slashed, name)
		}
		return nil
	})
	if err != nil || found < 3 {
		t.Fatalf("%d dialects, %v", found, err)
	}
}

// skips matches a call that skips a test and does not say why by testkit.Skip.
var skips = regexp.MustCompile(`\b(?:t|b|f|tb|[a-z]\.[tT])\.Skip(?:f|Now)?\(`)

// TestSkipsSayWhy checks that a skipped test says what is missing and what to do, and fails
// where continuous integration must have it: only internal/testkit skips tests.
func TestSkipsSayWhy(t *testing.T) {
	for bad, want := range map[string]bool{`t.Skip(err)`: true, `d.t.Skipf("no %s", x)`: true, `testkit.Skip(t, u)`: false, `SkipSlow(t)`: false} {
		if skips.MatchString(bad) != want {
			t.Errorf("%s: found %v, want %v", bad, !want, want)
		}
	}
	err := walkGo(func(file string) error {
		text, err := os.ReadFile(file)
		if err != nil || filepath.Base(file) == "house_test.go" || strings.HasPrefix(filepath.ToSlash(file), "../internal/testkit/") {
			return err
		}
		for n, line := range strings.Split(string(text), "\n") {
			if skips.MatchString(line) {
				t.Errorf("%s:%d: %s: call testkit.Skip, or one of its kind, with the reason", file, n+1, strings.TrimSpace(line))
			}
		}
		return nil
	})
	testkit.NoError(t, err)
}

func TestImportsFollowTheArrows(t *testing.T) {
	for _, s := range readSources(t) {
		for _, imp := range s.imports {
			if why := forbidden(s.folder(), s.path, imp); why != "" {
				t.Errorf("%s imports %s: %s", s.path, imp, why)
			}
		}
	}
}

// TestPublicPackages checks that the listing of a top-level folder is its
// interface: a package of xds, migrator, wasm or engine that no other folder
// imports belongs under that folder's internal directory.
func TestPublicPackages(t *testing.T) {
	for _, dir := range needlesslyPublic(readSources(t)) {
		t.Errorf("%s: no other top-level folder imports it; move it under internal", dir)
	}
}

// needlesslyPublic returns the directories of public packages that only their
// own top-level folder imports. Main packages, packages of tests only, generated
// wire types and the SDK for authors of policies (wasm/guest) are public as such.
func needlesslyPublic(sources []source) []string {
	public := map[string]bool{}
	for _, s := range sources {
		dir := path.Dir(s.path)
		switch s.folder() {
		case "xds", "migrator", "wasm", "engine":
			if s.pkg != "main" && !strings.HasSuffix(s.path, "_test.go") && path.Base(dir) != "api" &&
				dir != "wasm/guest" && !strings.HasPrefix(dir, "wasm/guest/") && !strings.Contains(dir, "/internal/") {
				public[dir] = true
			}
		}
	}
	for _, s := range sources {
		for _, imp := range s.imports {
			dir, ours := strings.CutPrefix(imp, module)
			if ours && !strings.HasPrefix(dir, s.folder()+"/") {
				delete(public, dir)
			}
		}
	}
	return slices.Sorted(maps.Keys(public))
}

// TestNeedlesslyPublicBites shows that the check above can fail.
func TestNeedlesslyPublicBites(t *testing.T) {
	got := needlesslyPublic([]source{
		{path: "xds/used/a.go", pkg: "used"},
		{path: "xds/unused/a.go", pkg: "unused"},
		{path: "xds/internal/hidden/a.go", pkg: "hidden"},
		{path: "xds/api/a.go", pkg: "api"},
		{path: "wasm/guest/place/a.go", pkg: "place"},
		{path: "wasm/plugins/place.go", pkg: "main"},
		{path: "xds/user/a_test.go", pkg: "user", imports: []string{module + "xds/unused"}},
		{path: "cmd/cascade/a_test.go", pkg: "main", imports: []string{module + "xds/used"}},
	})
	if want := []string{"xds/unused"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// rivals are the policies that only the simulator runs: those of other systems.
var rivals = []string{"policies/baseline"}

// TestSimulatorRunsProduction checks that the simulator decides by the policies that
// production runs: each package of policies that it imports, but for the rivals, is
// run by a daemon too.
func TestSimulatorRunsProduction(t *testing.T) {
	all := readSources(t)
	for _, dir := range simulatedOnly(all) {
		if !slices.Contains(rivals, dir) {
			t.Errorf("%s: engine/sim runs it and no daemon does: what it shows is not what production does", dir)
		}
	}
	if !slices.ContainsFunc(all, func(s source) bool {
		return path.Dir(s.path) == "engine/sim" && slices.Contains(s.imports, module+"policies/balance")
	}) {
		t.Error("engine/sim does not import policies/balance: the check looks in the wrong place")
	}
}

// simulatedOnly returns the packages of policies that engine/sim imports and that the
// daemons, whose sources are in xds, migrator and cmd/internal, import neither directly nor
// through other policies. Tests do not count.
func simulatedOnly(all []source) []string {
	imports := map[string][]string{} // of policies, by the directory of the importing package
	for _, s := range all {
		for _, imp := range s.imports {
			if dir, ours := strings.CutPrefix(imp, module); ours && strings.HasPrefix(dir, "policies/") && !strings.HasSuffix(s.path, "_test.go") {
				imports[path.Dir(s.path)] = append(imports[path.Dir(s.path)], dir)
			}
		}
	}
	simulated, run := map[string]bool{}, map[string]bool{}
	var follow func(dir string)
	follow = func(dir string) {
		for _, next := range imports[dir] {
			if !run[next] {
				run[next] = true
				follow(next)
			}
		}
	}
	for dir, list := range imports {
		switch folder, _, _ := strings.Cut(dir, "/"); {
		case dir == "engine/sim" || strings.HasPrefix(dir, "engine/sim/"):
			for _, imp := range list {
				simulated[imp] = true
			}
		case folder == "xds", folder == "migrator", strings.HasPrefix(dir, "cmd/internal/"):
			follow(dir)
		}
	}
	maps.DeleteFunc(simulated, func(dir string, _ bool) bool { return run[dir] })
	return slices.Sorted(maps.Keys(simulated))
}

// TestSimulatedOnlyBites shows that the check above can fail.
func TestSimulatedOnlyBites(t *testing.T) {
	got := simulatedOnly([]source{
		{path: "engine/sim/a.go", imports: []string{module + "policies", module + "policies/used", module + "policies/tested", module + "policies/copied", module + "policies/part"}},
		{path: "engine/sim/a_test.go", imports: []string{module + "internal/testkit"}},
		{path: "xds/fleet/a.go", imports: []string{module + "policies/used"}},
		{path: "policies/used/a.go", imports: []string{module + "policies/part"}},
		{path: "migrator/market/a_test.go", imports: []string{module + "policies/tested"}},
		{path: "cmd/cascade/sim.go", imports: []string{module + "policies/copied"}},
	})
	if want := []string{"policies/copied", "policies/tested"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// authors lists the packages that examples import: what an author of a policy,
// or a program that embeds the planner, may rely on. ARCHITECTURE.md names the
// same ones.
var authors = []string{"engine/cost", "wasm/abi", "wasm/host", "wasm/planguard", "wasm/rego"}

// TestExamplesUsePublicAPI checks that examples import nothing but policies, the
// guest SDK and the packages in authors, and that ARCHITECTURE.md names each.
func TestExamplesUsePublicAPI(t *testing.T) {
	text, err := os.ReadFile("../ARCHITECTURE.md")
	testkit.NoError(t, err)
	for _, dir := range append(authors, "policies", "wasm/guest") {
		if !strings.Contains(string(text), "`"+dir+"`") {
			t.Errorf("ARCHITECTURE.md does not name `%s`, which authors may import", dir)
		}
	}
	for _, s := range readSources(t) {
		for _, imp := range s.imports {
			dir, ours := strings.CutPrefix(imp, module)
			if !ours || s.folder() != "examples" || slices.Contains(authors, dir) {
				continue
			}
			if dir == testHelpers && strings.HasSuffix(s.path, "_test.go") {
				continue
			}
			if folder, _, _ := strings.Cut(dir, "/"); folder != "policies" && folder != "examples" && !strings.HasPrefix(dir, "wasm/guest/") {
				t.Errorf("%s imports %s, which is not for authors", s.path, imp)
			}
		}
	}
}

// forbidden returns why a file must not import a path, or "".
func forbidden(folder, rel, imp string) string {
	if imp == "C" && !strings.HasPrefix(rel, "migrator/device/") {
		return `import "C" belongs in migrator/device alone`
	}
	inTest := strings.HasSuffix(rel, "_test.go")
	inside, ours := strings.CutPrefix(imp, module)
	if !ours {
		first, _, _ := strings.Cut(imp, "/")
		if folder != "policies" {
			return ""
		}
		if strings.Contains(first, ".") {
			return "policies use the standard library only"
		}
		if !inTest && !strings.HasPrefix(rel, "policies/policytest/") {
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
	if inside == testHelpers || strings.HasPrefix(inside, testHelpers+"/") {
		if inTest || strings.HasPrefix(rel, "policies/policytest/") || slices.Contains(arrows[folder], "internal") {
			return ""
		}
	}
	if slices.Contains(arrows[folder], target) {
		return ""
	}
	return "no arrow from " + folder + " to " + target
}

// testHelpers is the package of helpers that the tests of every folder may import.
const testHelpers = "internal/testkit"

// TestForbiddenBites shows that forbidden can fail.
func TestForbiddenBites(t *testing.T) {
	for _, c := range []struct{ rel, imp string }{
		{"xds/fleet/x.go", module + "migrator/frontend"},
		{"xds/fleet/x_test.go", module + "engine/emulator"},
		{"policies/plan.go", "fmt"},
		{"policies/plan.go", module + "internal/httpserver"},
		{"policies/plan.go", module + "internal/testkit"},
		{"internal/httpserver/x.go", module + "xds/control"},
		{"examples/a/main.go", module + "internal/httpserver"},
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

// TestArchitecturePaths checks that ARCHITECTURE.md names no package and no file that does not exist, and every package
// that exists, by its path or by that of a folder above it with "/…". Packages of wire types need no row.
func TestArchitecturePaths(t *testing.T) {
	text, err := os.ReadFile("../ARCHITECTURE.md")
	testkit.NoError(t, err)
	exact, below := map[string]bool{}, []string{}
	for _, m := range regexp.MustCompile("`((?:cmd|xds|wasm|engine|migrator|policies|examples|internal)(?:/[a-z_0-9/.…-]+)?)`").FindAllStringSubmatch(string(text), -1) {
		dir, all := strings.CutSuffix(m[1], "/…")
		exact[dir] = true
		if all {
			below = append(below, dir+"/")
		}
		if _, err := os.Stat(filepath.FromSlash("../" + dir)); err != nil {
			t.Errorf("%s does not exist", dir)
		}
	}
	if len(exact) < 100 {
		t.Errorf("found only %d paths: the pattern is wrong", len(exact))
	}
	for _, s := range readSources(t) {
		dir := path.Dir(s.path)
		named := exact[dir] || path.Base(dir) == "api" || strings.HasSuffix(s.path, "_test.go") || strings.Contains(dir, "testdata")
		if !named && !slices.ContainsFunc(below, func(folder string) bool { return strings.HasPrefix(dir+"/", folder) }) {
			t.Errorf("ARCHITECTURE.md does not name %s", dir)
			exact[dir] = true
		}
	}
}

// TestCascadeHasNoKubernetesClient checks that the command cascade, which newcomers build, does not
// compile a client of Kubernetes: cascade-kube does.
func TestCascadeHasNoKubernetesClient(t *testing.T) {
	all := readSources(t)
	if from := reaches(all, "cmd/cascade", "k8s.io/"); from != "" {
		t.Errorf("%s, which cmd/cascade links, imports k8s.io/…: only cmd/cascade-kube may", from)
	}
	if reaches(all, "cmd/cascade-kube", "k8s.io/") == "" {
		t.Error("cmd/cascade-kube imports no client: the check looks in the wrong place")
	}
}

// reaches returns a directory that a program links and that imports a package with a prefix; "" if
// there is none. Tests do not count.
func reaches(all []source, program, prefix string) string {
	seen, queue := map[string]bool{program: true}, []string{program}
	for len(queue) > 0 {
		dir := queue[0]
		queue = queue[1:]
		for _, s := range all {
			if path.Dir(s.path) != dir || strings.HasSuffix(s.path, "_test.go") {
				continue
			}
			for _, imp := range s.imports {
				if strings.HasPrefix(imp, prefix) {
					return dir
				}
				if next, ours := strings.CutPrefix(imp, module); ours && !seen[next] {
					seen[next] = true
					queue = append(queue, next)
				}
			}
		}
	}
	return ""
}
