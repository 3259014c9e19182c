package mutate

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// pkg is a package with its mutants.
type pkg struct {
	dir     string
	name    string
	digest  string // of its files
	mutants []mutant
	files   []*file
}

// file is one file of a package: its text, and the places of its mutants.
type file struct {
	name  string
	text  []byte
	start token.Pos
	sites []site // in the order of their starts, outer ones first
}

// mutant is one change.
type mutant struct {
	id           int // from 1
	file         string
	line, column int
	what         string // original → mutated
}

func (m mutant) String() string { return fmt.Sprintf("%s:%d:%d %s", m.file, m.line, m.column, m.what) }

// load reads a package and finds its mutants. The types come from export data, which the
// go command has.
func load(ctx context.Context, dir string) (*pkg, error) {
	listed, err := goList(ctx, "-export", "-deps", "-json=ImportPath,Export,Dir,GoFiles", "./"+dir)
	if err != nil {
		return nil, err
	}
	type listing struct {
		ImportPath, Export, Dir string
		GoFiles                 []string
	}
	var last listing
	exports := map[string]string{}
	for dec := json.NewDecoder(bytes.NewReader(listed)); dec.More(); exports[last.ImportPath] = last.Export {
		last = listing{}
		if err := dec.Decode(&last); err != nil {
			return nil, err
		}
	}
	fset := token.NewFileSet()
	p, sum := &pkg{dir: dir}, sha256.New()
	var parsed []*ast.File
	for _, name := range last.GoFiles {
		if strings.HasSuffix(name, ".pb.go") {
			continue
		}
		f := &file{name: filepath.Join(last.Dir, name)}
		if f.text, err = os.ReadFile(f.name); err != nil {
			return nil, err
		}
		sum.Write(f.text)
		tree, err := parser.ParseFile(fset, f.name, f.text, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		f.start = tree.FileStart
		parsed, p.files = append(parsed, tree), append(p.files, f)
	}
	p.name, p.digest = parsed[0].Name.Name, fmt.Sprintf("%x", sum.Sum(nil)[:8])
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })}
	checked, err := conf.Check(module+dir, fset, parsed, info)
	if err != nil {
		return nil, err
	}
	for i, tree := range parsed {
		finder{pkg: p, file: p.files[i], info: info, fset: fset, checked: checked, tree: tree}.find()
	}
	return p, nil
}

// finder finds the mutants of one file.
type finder struct {
	pkg     *pkg
	file    *file
	info    *types.Info
	fset    *token.FileSet
	checked *types.Package
	tree    *ast.File
}

// Mutations of operators: boundaries, negations, arithmetic, logic.
var operators = map[token.Token][]token.Token{
	token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR},
	token.GTR: {token.GEQ, token.LEQ}, token.GEQ: {token.GTR, token.LSS},
	token.EQL: {token.NEQ}, token.NEQ: {token.EQL},
	token.LAND: {token.LOR}, token.LOR: {token.LAND},
	token.ADD: {token.SUB}, token.SUB: {token.ADD}, token.MUL: {token.QUO}, token.QUO: {token.MUL}, token.REM: {token.MUL},
	token.AND: {token.OR}, token.OR: {token.AND}, token.SHL: {token.SHR}, token.SHR: {token.SHL},
	token.ADD_ASSIGN: {token.SUB_ASSIGN}, token.SUB_ASSIGN: {token.ADD_ASSIGN}, token.MUL_ASSIGN: {token.QUO_ASSIGN}, token.QUO_ASSIGN: {token.MUL_ASSIGN},
	token.INC: {token.DEC}, token.DEC: {token.INC},
}

func (f finder) find() {
	ast.Inspect(f.tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GenDecl:
			return n.Tok != token.CONST && n.Tok != token.TYPE
		case *ast.BinaryExpr:
			f.binary(n)
		case *ast.UnaryExpr:
			if n.Op == token.SUB {
				f.valueSite(n, f.text(n.X))
			}
		case *ast.IfStmt:
			f.condition(n.Cond)
		case *ast.ForStmt:
			f.condition(n.Cond)
			if post, ok := n.Post.(*ast.IncDecStmt); ok {
				f.incDec(post, "func() { ", " }()")
			}
		case *ast.BlockStmt:
			f.statements(n.List)
		case *ast.CaseClause:
			f.statements(n.Body)
		case *ast.CommClause:
			f.statements(n.Body)
		}
		return true
	})
}

// binary adds the mutants of an operator.
func (f finder) binary(n *ast.BinaryExpr) {
	tv := f.info.Types[n]
	basic, ok := tv.Type.Underlying().(*types.Basic)
	if !ok || tv.Value != nil {
		return
	}
	for _, op := range operators[n.Op] {
		mutated := fmt.Sprintf("(%s) %s (%s)", f.text(n.X), op, f.text(n.Y))
		switch {
		case basic.Info()&types.IsBoolean != 0:
			f.boolSite(n, mutated)
		case basic.Info()&types.IsString == 0 && basic.Info()&types.IsUntyped == 0 && (op != token.SHL && op != token.SHR || basic.Info()&types.IsInteger != 0):
			f.valueSite(n, mutated)
		}
	}
}

// condition adds the negation of a condition that is no comparison.
func (f finder) condition(n ast.Expr) {
	if n == nil || f.info.Types[n].Value != nil {
		return
	}
	if _, binary := n.(*ast.BinaryExpr); !binary {
		f.boolSite(n, "!("+f.text(n)+")")
	}
}

// statements adds the removals of statements that the rest of a block compiles without.
func (f finder) statements(list []ast.Stmt) {
	for _, s := range list {
		if l, ok := s.(*ast.LabeledStmt); ok {
			s = l.Stmt
		}
		switch s := s.(type) {
		case *ast.IncDecStmt:
			f.incDec(s, "", "")
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE {
				continue
			}
			for _, op := range operators[s.Tok] {
				if t, ok := f.info.Types[s.Lhs[0]].Type.Underlying().(*types.Basic); ok && t.Info()&types.IsString == 0 {
					mutated := f.text(s.Lhs[0]) + " " + op.String() + " " + f.text(s.Rhs[0])
					id := f.add(s, mutated)
					f.site(s, fmt.Sprintf("if cascadeMutant == %d { %s } else { ", id, mutated), " }")
				}
			}
			if id, ok := s.Lhs[0].(*ast.Ident); !ok || id.Name != "_" {
				f.removal(s)
			}
		case *ast.BranchStmt:
			if s.Tok == token.BREAK || s.Tok == token.CONTINUE {
				f.removal(s)
			}
		case *ast.ExprStmt:
			if call, ok := s.X.(*ast.CallExpr); ok && f.mayRemove(call) {
				f.removal(s)
			}
		}
	}
}

func (f finder) removal(s ast.Stmt) {
	f.site(s, fmt.Sprintf("if cascadeMutant != %d { ", f.add(s, "removed")), " }")
}

func (f finder) incDec(s *ast.IncDecStmt, before, after string) {
	mutated := f.text(s.X) + operators[s.Tok][0].String()
	f.site(s, fmt.Sprintf("%sif cascadeMutant == %d { %s } else { ", before, f.add(s, mutated), mutated), " }"+after)
}

// mayRemove reports whether the removal of a call is a mutant: it is not for panics,
// which end functions, for locks and for logs.
func (f finder) mayRemove(call *ast.CallExpr) bool {
	if id, ok := call.Fun.(*ast.Ident); ok && id.Name == "panic" {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return true
	}
	switch sel.Sel.Name {
	case "Lock", "Unlock", "RLock", "RUnlock", "Debug", "Info", "Warn", "Error", "Log", "LogAttrs":
		return false
	}
	return true
}

// text returns the source of a node.
func (f finder) text(n ast.Node) string {
	return string(f.file.text[n.Pos()-f.file.start : n.End()-f.file.start])
}

// add adds a mutant that makes of n what mutated says, and returns its id.
func (f finder) add(n ast.Node, mutated string) int {
	at := f.fset.Position(n.Pos())
	oneLine := func(s string) string {
		r := []rune(strings.Join(strings.Fields(s), " "))
		if len(r) > 80 {
			r = slices.Concat(r[:38], []rune(" … "), r[len(r)-38:])
		}
		return string(r)
	}
	id := len(f.pkg.mutants) + 1
	f.pkg.mutants = append(f.pkg.mutants, mutant{id, filepath.Base(at.Filename), at.Line, at.Column, oneLine(f.text(n)) + " → " + oneLine(mutated)})
	return id
}

// boolSite adds a mutant of a boolean expression.
func (f finder) boolSite(n ast.Expr, mutated string) {
	id := f.add(n, mutated)
	f.site(n, fmt.Sprintf("(cascadeMutant == %d && (%s) || cascadeMutant != %d && (", id, mutated, id), "))")
}

// valueSite adds a mutant of an expression of any type that this file can spell.
func (f finder) valueSite(n ast.Expr, mutated string) {
	tv := f.info.Types[n]
	spelled := true
	name := types.TypeString(tv.Type, func(other *types.Package) string {
		if other == f.checked {
			return ""
		}
		for _, spec := range f.tree.Imports {
			if strings.Trim(spec.Path.Value, `"`) == other.Path() {
				if spec.Name != nil {
					return spec.Name.Name
				}
				return other.Name()
			}
		}
		spelled = false
		return ""
	})
	if tv.Value != nil || !spelled || strings.Contains(name, "untyped") {
		return
	}
	id := f.add(n, mutated)
	f.site(n, fmt.Sprintf("func() %s { if cascadeMutant == %d { return %s }; return ", name, id, mutated), " }()")
}
