package cmd_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/docsite/markdown"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

var (
	// docCommand matches the inline code of documents that runs
	// tests or benchmarks.
	docCommand = regexp.MustCompile("`([^`\n]*-(?:run|bench)[ =][^`\n]*)`")
	docPattern = regexp.MustCompile(`-(run|bench)[ =]('[^']*'|\S+)`)
	docPackage = regexp.MustCompile(`(?:^|\s)\./([\w/.-]*)`)
	testFunc   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w*)\(`)
)

// TestDocumentedCommands checks that every command in the documents that promise something names packages that exist,
// if it selects tests or benchmarks, and that each alternative of its pattern matches at least one of their functions.
// Otherwise the command passes and shows nothing.
func TestDocumentedCommands(t *testing.T) {
	commands := 0
	for _, doc := range []string{"README.md", "BENCHMARKS.md", "docs/promises.md", "docs/policy-call.md"} {
		text, err := os.ReadFile(filepath.Join("..", doc))
		testkit.NoError(t, err)
		for _, command := range docCommand.FindAllStringSubmatch(strings.ReplaceAll(string(text), `\|`, "|"), -1) {
			commands++
			for _, missing := range unmatched(t, command[1]) {
				t.Errorf("%s: %q: no function in its packages matches %q", doc, command[1], missing)
			}
		}
	}
	if commands < 30 {
		t.Errorf("found only %d commands: the pattern is wrong", commands)
	}
	if got := unmatched(t, "go test -run 'DocumentedCommands|NoSuchTest' ./cmd"); len(got) != 1 || got[0] != "NoSuchTest" {
		t.Errorf("a test that does not exist: %q", got)
	}
}

// unmatched returns the alternatives of a command's -run and -bench patterns that
// match no function in the command's packages.
func unmatched(t *testing.T, command string) []string {
	var functions []string
	for _, pkg := range docPackage.FindAllStringSubmatch(command, -1) {
		functions = append(functions, testFunctions(t, pkg[1])...)
	}
	var out []string
	for _, m := range docPattern.FindAllStringSubmatch(command, -1) {
		pattern, _, _ := strings.Cut(strings.Trim(m[2], "'"), "/")
		if pattern == "^$" || pattern == "." || len(functions) == 0 && !strings.Contains(command, "./") {
			continue
		}
		for _, alternative := range strings.Split(pattern, "|") {
			re := regexp.MustCompile(alternative)
			if !slices.ContainsFunc(functions, func(name string) bool {
				return strings.HasPrefix(name, "Benchmark") == (m[1] == "bench") && re.MatchString(name)
			}) {
				out = append(out, alternative)
			}
		}
	}
	return out
}

// testFunctions returns the tests and benchmarks of a package, or of all packages
// below it for a path that ends with "...". A path that does not exist is an error.
func testFunctions(t *testing.T, pkg string) []string {
	dir, all := strings.CutSuffix(strings.TrimSuffix(pkg, "/"), "...")
	dir = filepath.Join("..", filepath.FromSlash(dir))
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
		return nil
	}
	var functions []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != dir && !all:
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range testFunc.FindAllStringSubmatch(string(text), -1) {
			functions = append(functions, m[1])
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return functions
}

// TestOneVersion: the chart and the newest section of the changelog have the version of the programs.
func TestOneVersion(t *testing.T) {
	chart := string(testkit.Must(os.ReadFile("../deploy/helm/cascade/Chart.yaml")))
	if !strings.Contains(chart, "\nversion: "+cli.Version+"\nappVersion: "+cli.Version+"\n") {
		t.Errorf("Chart.yaml does not have version %s", cli.Version)
	}
	_, newest, _ := strings.Cut(string(testkit.Must(os.ReadFile("../CHANGELOG.md"))), "\n## ")
	if !strings.HasPrefix(newest, cli.Version) {
		t.Errorf("the newest section of CHANGELOG.md is not that of %s", cli.Version)
	}
}

// TestLinks checks that the local links of every Markdown file lead to a file or a folder of the repository, and those
// with an anchor to a heading. Links to other hosts are not followed.
func TestLinks(t *testing.T) {
	root := os.DirFS("..")
	repository := markdown.NewRepository(root)
	files, links := 0, 0
	err := fs.WalkDir(root, ".", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || file == "bin" || file == "dist" || file == "out"):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(file) != ".md":
			return nil
		}
		files++
		document, err := repository.Document(file)
		if err != nil {
			return err
		}
		for _, l := range document.Links {
			if !l.Local() {
				continue
			}
			links++
			if _, err := repository.Resolve(file, l); err != nil {
				t.Error(err)
			}
		}
		return nil
	})
	testkit.NoError(t, err)
	if files < 20 || links < 120 {
		t.Errorf("found only %d links in %d files: the test looks in the wrong place", links, files)
	}
}

// TestWays checks that the pages that lead through the source have as many functions as they say, and that each exists.
func TestWays(t *testing.T) {
	for page, functions := range map[string]int{"plan.md": 12, "policy-call.md": 8} {
		text := string(testkit.Must(os.ReadFile("../docs/" + page)))
		rows := regexp.MustCompile("(?m)^\\| \\d+ \\| `(?:(\\w+)\\.)?(\\w+)` \\| `([a-z/]+)` \\|").FindAllStringSubmatch(text, -1)
		if len(rows) != functions {
			t.Errorf("%s has %d functions, want %d", page, len(rows), functions)
		}
		for _, row := range rows {
			receiver := ""
			if row[1] != "" {
				receiver = `\(\w+ \*?` + row[1] + `(?:\[.*\])?\) `
			}
			declared := regexp.MustCompile(`(?m)^func ` + receiver + row[2] + `(?:\[.*\])?\(`)
			files := testkit.Must(filepath.Glob("../" + row[3] + "/*.go"))
			if !slices.ContainsFunc(files, func(f string) bool { return declared.Match(testkit.Must(os.ReadFile(f))) }) {
				t.Errorf("%s: %s has no function %s of %q", page, row[3], row[2], row[1])
			}
		}
	}
}
