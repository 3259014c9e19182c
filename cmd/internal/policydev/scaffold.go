package policydev

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"go/format"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"text/template"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/calllog"
	"github.com/cascadeinfer/cascade/wasm/guest"
)

//go:embed scaffold
var scaffold embed.FS

// NewKinds returns the kinds of policies that New can write.
func NewKinds() []string { return slices.Sorted(maps.Keys(newKinds)) }

// The languages that New supports.
const (
	langGo   = "go"
	langC    = "c"
	LangRego = "rego"
)

// NewLanguages returns the languages that New supports.
func NewLanguages() []string { return []string{langGo, langC, LangRego} }

const (
	modulePath = "github.com/cascadeinfer/cascade"
	goVersion  = "1.26.0"
	// newFrames is the number of random frames of each kind in a new policy.
	newFrames = 20
)

// NewConfig configures New.
type NewConfig struct {
	Dir  string // made by New; its last element is the name of the policy
	Kind string // one of NewKinds
	Lang string // one of NewLanguages; rules in Rego are of kind guard
	// Sources is the checkout of Cascade against which the policy is built. "" means
	// the one that contains the folder, the working directory or this program; if there
	// is none, the policy is built against this program's version if that is released.
	Sources string
}

// NewResult describes the policy that New wrote.
type NewResult struct {
	Dir     string   `json:"dir"`
	Name    string   `json:"name"`
	Kind    string   `json:"kind"`
	Lang    string   `json:"lang"`
	Sources string   `json:"sources,omitempty"` // the checkout against which it is built, or the version
	Files   []string `json:"files"`
}

var goodName = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,63}$`)

// New writes a policy that can be built and tested at once. The folder must be missing or
// empty.
func New(c NewConfig) (NewResult, error) {
	b := NewResult{Dir: c.Dir, Name: filepath.Base(c.Dir), Kind: c.Kind, Lang: c.Lang}
	decide, ok := newKinds[c.Kind]
	switch {
	case !goodName.MatchString(b.Name):
		return b, fmt.Errorf("name %q: use up to 64 of a–z, 0–9, \"-\", \"_\" and \".\", the first a letter or digit", b.Name)
	case !ok:
		return b, fmt.Errorf("kind %q: use %s", c.Kind, strings.Join(NewKinds(), ", "))
	case !slices.Contains(NewLanguages(), c.Lang):
		return b, fmt.Errorf("language %q: use %s", c.Lang, strings.Join(NewLanguages(), ", "))
	case c.Lang == LangRego && c.Kind != abi.Guard.String():
		return b, fmt.Errorf("kind %q: rules in Rego judge plans: they are of kind %s", c.Kind, abi.Guard)
	}
	if entries, err := os.ReadDir(c.Dir); err == nil && len(entries) > 0 {
		return b, fmt.Errorf("%s is not empty: name a folder that does not exist", c.Dir)
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return b, err
	}
	v := templateData{Name: b.Name, Kind: c.Kind, Lang: c.Lang, Go: goVersion, Decide: decide, Packages: slices.Sorted(maps.Values(decide)), Builtin: b.Name + "-1.wasm"}
	var frames []Frame
	for k := range abi.NumKinds {
		if decide[k.String()] == "" {
			continue
		}
		if own, ok := defaultBuiltin(k); ok {
			v.Builtin = own.name
		}
		random, err := randomFrames(1, k, newFrames)
		if err != nil {
			return b, err
		}
		frames = append(frames, random...)
	}
	files := map[string][]byte{}
	var recorded bytes.Buffer
	if err := calllog.Write(&recorded, frames); err != nil {
		return b, err
	}
	files["testdata/frames.jsonl"] = recorded.Bytes()
	templates := map[string]string{"README.md": "go/README.md.tmpl"}
	switch c.Lang {
	case langGo:
		if err := v.resolveSources(&b, c); err != nil {
			return b, err
		}
		test, err := scaffold.ReadFile("scaffold/go/" + c.Kind + "_test.go.tmpl")
		if err != nil {
			return b, err
		}
		v.Test = string(test)
		maps.Copy(templates, map[string]string{"main.go": "go/" + c.Kind + ".go.tmpl", "main_test.go": "go/main_test.go.tmpl", "go.mod": "go/go.mod.tmpl"})
	case langC:
		files["cascade_policy.h"] = guest.Header
		templates["main.c"] = "c/" + c.Kind + ".c.tmpl"
	case LangRego:
		for _, name := range []string{"README.md", "policy.rego", "policy_test.rego", "settings.json"} {
			templates[name] = "rego/" + name + ".tmpl"
		}
	}
	for name, from := range templates {
		text, err := v.render(from)
		if err != nil {
			return b, err
		}
		files[name] = text
	}
	if err := os.MkdirAll(filepath.Join(c.Dir, "testdata"), 0o777); err != nil {
		return b, err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(c.Dir, filepath.FromSlash(name)), text, 0o666); err != nil {
			return b, err
		}
	}
	b.Files = slices.Sorted(maps.Keys(files))
	return b, nil
}

// templateData is the data of the templates.
type templateData struct {
	Name, Kind, Lang string
	Decide           map[string]string // kind: guest package
	Packages         []string
	Test             string
	Builtin          string // the built-in policy to compare with
	Go               string
	Version, Replace string
}

func (v *templateData) render(from string) ([]byte, error) {
	t, err := template.ParseFS(scaffold, "scaffold/"+from)
	if err != nil {
		return nil, err
	}
	var w bytes.Buffer
	if err := t.Execute(&w, v); err != nil {
		return nil, err
	}
	if strings.HasSuffix(from, ".go.tmpl") {
		return format.Source(w.Bytes())
	}
	return w.Bytes(), nil
}

// resolveSources determines against which checkout or version a Go policy is built. The
// path of a checkout that contains the folder is relative, so that both can be moved
// together.
func (v *templateData) resolveSources(b *NewResult, c NewConfig) error {
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return err
	}
	v.Version = "v0.0.0"
	if c.Sources != "" {
		root, err := filepath.Abs(c.Sources)
		if err != nil {
			return err
		}
		if !isCheckout(root) {
			return fmt.Errorf("%s is no checkout of Cascade: its go.mod is not that of %s", c.Sources, modulePath)
		}
		b.Sources, v.Replace = root, root
		return nil
	}
	if root := findCheckout(dir); root != "" {
		if v.Replace, err = filepath.Rel(dir, root); err != nil {
			return err
		}
		b.Sources, v.Replace = root, filepath.ToSlash(v.Replace)
		return nil
	}
	here, _ := os.Getwd()         // on an error,
	program, _ := os.Executable() // no checkout is found
	for _, at := range []string{here, filepath.Dir(program)} {
		if root := findCheckout(at); root != "" {
			b.Sources, v.Replace = root, root
			return nil
		}
	}
	if info, ok := debug.ReadBuildInfo(); ok && releasedVersion.MatchString(info.Main.Version) {
		b.Sources, v.Version = info.Main.Version, info.Main.Version
		return nil
	}
	return errors.New("what shall the policy be built against? This program is no published version: name a checkout of Cascade with --cascade DIR")
}

// releasedVersion matches a version that others can fetch.
var releasedVersion = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-rc\.?[0-9]+)?$`)

// findCheckout returns the checkout that contains a folder, or "".
func findCheckout(dir string) string {
	if dir == "" || dir == "." {
		return ""
	}
	for {
		if isCheckout(dir) {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			return ""
		}
		dir = up
	}
}

func isCheckout(dir string) bool {
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	first, _, _ := strings.Cut(string(text), "\n")
	return err == nil && strings.TrimSpace(first) == "module "+modulePath
}
