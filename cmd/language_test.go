package cmd_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// vague matches words that do not belong into identifiers, comments, log messages
// and errors of tests: they hide which component does what. Name the component, and say
// "returns", "reports", "sends" or "logs".
var vague = regexp.MustCompile(`(?i)^(nobody|somebody|anybody|tells?|telling|told)$`)

// wordPattern splits text and camelCase identifiers into words.
var wordPattern = regexp.MustCompile(`[A-Z]?[a-z]+|[A-Z]+`)

// TestLanguage keeps the vague words out of every Go file that is not generated.
func TestLanguage(t *testing.T) {
	files := 0
	err := walkGo(func(path string) error {
		if strings.HasSuffix(path, ".pb.go") || filepath.Base(path) == "language_test.go" {
			return nil
		}
		files++
		found, err := findVague(path, nil)
		for _, f := range found {
			t.Error(f)
		}
		return err
	})
	testkit.NoError(t, err)
	if files < 1000 {
		t.Errorf("read only %d files: the test looks in the wrong place", files)
	}
}

// TestFindVague shows that each kind of place is found, and that other strings are
// not.
func TestFindVague(t *testing.T) {
	found, err := findVague("x.go", `package x

// tells is vague.
func tellPeers(log logger) {
	log.Warn("nobody answered")
	print("told")
	t.Errorf("told %d times", 2)
}
`)
	testkit.NoError(t, err)
	var got []string
	for _, f := range found {
		got = append(got, strings.SplitN(f, ":", 3)[1])
	}
	if strings.Join(got, " ") != "4 5 7 3" {
		t.Errorf("found in lines %v: %q", got, found)
	}
}

// findVague returns the places in a Go file that have a vague word, as
// "file:line: text". A nil source means the file's content.
func findVague(path string, source any) ([]string, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, source, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	var found []string
	check := func(pos token.Pos, text string) {
		for _, word := range wordPattern.FindAllString(text, -1) {
			if vague.MatchString(word) {
				found = append(found, fmt.Sprintf("%s: %q in %s", fset.Position(pos), word, strings.TrimSpace(text)))
				return
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			if n.Obj != nil && n.Obj.Pos() == n.Pos() || n.Obj == nil {
				check(n.Pos(), n.Name)
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && len(n.Args) > 0 {
				switch f.Sel.Name {
				case "Debug", "Info", "Warn", "Error", "DebugContext", "InfoContext", "WarnContext", "ErrorContext",
					"Errorf", "Fatal", "Fatalf", "Log", "Logf", "Skip", "Skipf": // also of tests
					for _, a := range n.Args {
						if lit, ok := a.(*ast.BasicLit); ok && lit.Kind == token.STRING {
							if text, err := strconv.Unquote(lit.Value); err == nil {
								check(lit.Pos(), text)
							}
						}
					}
				}
			}
		}
		return true
	})
	for _, group := range file.Comments {
		for _, c := range group.List {
			for i, line := range strings.Split(c.Text, "\n") {
				check(c.Pos()+token.Pos(i), line)
			}
		}
	}
	return found, nil
}
