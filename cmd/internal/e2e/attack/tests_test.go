package attack

import (
	"flag"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies/testkit"
)

// root is the repository's root, as seen from this folder.
const root = "../../../.."

// testsHead begins the section of README.md that lists tests.
const testsHead = `
## Tests of packages

| attack | test |
|---|---|
`

// packageTests returns that section: each test named TestAttack… with the first sentence of its
// comment. Without -rewrite it is what README.md has: a new test elsewhere does not fail this one.
func packageTests(t *testing.T) string {
	t.Helper()
	if flag.Lookup("rewrite").Value.String() != "true" {
		_, rows, _ := strings.Cut(string(testkit.Must(os.ReadFile("README.md"))), testsHead)
		return testsHead + rows
	}
	var out strings.Builder
	out.WriteString(testsHead)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root:
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(testkit.Must(filepath.Rel(root, filepath.Dir(path))))
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(f.Name.Name, "TestAttack") || f.Name.Name == "TestAttackScripts" {
				continue
			}
			said := new(doc.Package).Synopsis(f.Doc.Text())
			said = strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(said, f.Name.Name), ":"))
			if said == "" {
				t.Errorf("%s: %s has no comment", path, f.Name.Name)
				continue
			}
			fmt.Fprintf(&out, "| %s%s | `go test -run %s ./%s` |\n", strings.ToUpper(said[:1]), strings.ReplaceAll(said[1:], "|", `\|`), f.Name.Name, dir)
		}
		return nil
	})
	testkit.NoError(t, err)
	return out.String()
}
