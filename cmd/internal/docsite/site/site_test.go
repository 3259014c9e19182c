package site

import (
	"bytes"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/net/html"

	"github.com/cascadeinfer/cascade/policies/testkit"
)

// small is a repository with each kind of link.
func small() fstest.MapFS {
	return fstest.MapFS{
		"docs/index.md":              {Data: []byte("# Book\n\n## First\n\n- [A](a.md)\n- [Top](../README.md)\n\n## Empty\n\n## Second\n\n- [Unit](reference/u.md)\n\n![picture](p.png)\n")},
		"docs/a.md":                  {Data: []byte("# A\n\n## B\n\n[self](#b) [unit](../deploy/systemd) [code](../deploy) [out](https://example.org/)\n")},
		"docs/p.png":                 {Data: []byte("png")},
		"docs/reference/u.md":        {Data: []byte("# U\n\n[back](../a.md#b)\n")},
		"README.md":                  {Data: []byte("# Top\n\n[licence](LICENSE)\n")},
		"LICENSE":                    {Data: []byte("free")},
		"deploy/README.md":           {Data: []byte("# Deploy\n")},
		"deploy/systemd/a@.service":  {Data: []byte("[Unit]")},
		"deploy/systemd/.hidden":     {Data: []byte("")},
		"deploy/systemd/testdata/x":  {Data: []byte("")},
		"deploy/systemd/more/b.unit": {Data: []byte("b")},
		"unlinked.md":                {Data: []byte("# Unlinked\n")},
	}
}

func TestBuild(t *testing.T) {
	built, err := Build(small())
	testkit.NoError(t, err)
	checkSite(t, built)
	var names []string
	for name := range built {
		names = append(names, name)
	}
	slices.Sort(names)
	want := []string{"a.html", "index.html", "p.png", "reference/u.html", "repository/LICENSE", "repository/README.html", "repository/deploy/README.html",
		"repository/deploy/systemd/a@.service", "repository/deploy/systemd/index.html", "repository/deploy/systemd/more/b.unit", "repository/deploy/systemd/more/index.html", "style.css"}
	if !slices.Equal(names, want) {
		t.Errorf("the site has %q", names)
	}
	for name, wants := range map[string][]string{
		"a.html":           {"<title>A · Cascade</title>", `href="a.html" aria-current="page"`, `rel="next" href="repository/README.html"`, `href="https://example.org/"`, "<h2>Second</h2>"},
		"reference/u.html": {`href="../style.css"`, `href="../a.html#b"`, `class="home" href="../index.html"`, `rel="prev" href="../repository/README.html"`},
	} {
		for _, w := range wants {
			if !bytes.Contains(built[name], []byte(w)) {
				t.Errorf("%s lacks %s:\n%s", name, w, built[name])
			}
		}
	}
	if bytes.Contains(built["a.html"], []byte("Empty")) {
		t.Error("a heading without links is in the navigation")
	}
}

func TestBuildRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		file, text, err string
	}{
		"no index":      {"docs/index.md", "", "no heading of level 2 has a list of links"},
		"broken link":   {"docs/a.md", "# A\n\n[x](b.md)\n", "docs/a.md:3: link to \"b.md\""},
		"broken anchor": {"docs/reference/u.md", "# U\n\n[back](../a.md#c)\n", `docs/a.md has no heading with the anchor "c"`},
		"no title":      {"README.md", "Top\n", "README.md: no heading of level 1"},
		"large file":    {"LICENSE", strings.Repeat("x", maxSize+1), "exceed the limit"},
		"large page":    {"README.md", strings.Repeat("x", maxSize/2), "exceed the limit"},
	} {
		files := small()
		files[tc.file] = &fstest.MapFile{Data: []byte(tc.text)}
		_, err := Build(files)
		if err == nil || !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	many := small()
	for i := range maxFiles {
		many["deploy/systemd/"+strings.Repeat("x", i+1)] = &fstest.MapFile{}
	}
	_, err := Build(many)
	testkit.WantError(t, err, "more than 1000 files")
}

// TestWrite: a site is written, replaced as a whole, and overwrites no other directory.
func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "site")
	testkit.NoError(t, Site{"a.html": []byte("1"), "b/c.html": []byte("2")}.Write(dir))
	testkit.NoError(t, Site{"b/c.html": []byte("3")}.Write(dir))
	if text := testkit.Must(os.ReadFile(filepath.Join(dir, "b", "c.html"))); string(text) != "3" {
		t.Errorf("%s", text)
	}
	if _, err := os.Stat(filepath.Join(dir, "a.html")); err == nil {
		t.Error("a page of the former site is left")
	}
	other := t.TempDir()
	testkit.NoError(t, os.WriteFile(filepath.Join(other, "thesis.txt"), nil, 0o600))
	testkit.WantError(t, Site{"a.html": nil}.Write(other), "has other files")
	if _, err := os.Stat(filepath.Join(other, "thesis.txt")); err != nil {
		t.Error(err)
	}
}

// TestBook builds the site of this repository: it has each chapter and each reference, and its links resolve.
func TestBook(t *testing.T) {
	root := os.DirFS(filepath.Join("..", "..", "..", ".."))
	built, err := Build(root)
	testkit.NoError(t, err)
	checkSite(t, built)
	testkit.NoError(t, fs.WalkDir(root, "docs", func(file string, d fs.DirEntry, err error) error {
		if page, ok := strings.CutSuffix(strings.TrimPrefix(file, "docs/"), ".md"); ok && built[page+".html"] == nil {
			t.Errorf("%s is no page of the site: docs/index.md should list it", file)
		}
		return err
	}))
	for _, name := range []string{"README", "ARCHITECTURE", "RATIONALE", "BENCHMARKS", "CHANGELOG", "deploy/runbook", "deploy/vllm/README", "deploy/etcd/README"} {
		if built["repository/"+name+".html"] == nil {
			t.Errorf("%s.md is no page of the site", name)
		}
	}
}

// checkSite checks that the pages are well-formed, that all their links lead to files and anchors of the site or to
// other hosts, that nothing is loaded from another host, and that each page names itself in the navigation at most once.
func checkSite(t *testing.T, built Site) {
	t.Helper()
	pages := map[string]*html.Node{}
	ids := map[string]map[string]bool{}
	for name, text := range built {
		if path.Ext(name) == ".html" {
			pages[name] = testkit.Must(html.Parse(bytes.NewReader(text)))
			ids[name] = map[string]bool{}
			for n := range pages[name].Descendants() {
				if id := attribute(n, "id"); id != "" {
					if ids[name][id] {
						t.Errorf("%s: two elements have the id %q", name, id)
					}
					ids[name][id] = true
				}
			}
		}
	}
	links := 0
	for name, root := range pages {
		current := 0
		for n := range root.Descendants() {
			if attribute(n, "aria-current") != "" {
				current++
			}
			for _, key := range []string{"href", "src"} {
				to := attribute(n, key)
				if to == "" {
					continue
				}
				links++
				if strings.Contains(to, "://") {
					if n.Data != "a" {
						t.Errorf("%s: <%s> loads %s from another host", name, n.Data, to)
					}
					continue
				}
				file, fragment, _ := strings.Cut(to, "#")
				if file = path.Join(path.Dir(name), unescape(t, file)); strings.HasPrefix(to, "#") {
					file = name
				}
				if built[file] == nil {
					t.Errorf("%s: %s leads to no file of the site", name, to)
				} else if fragment != "" && !ids[file][unescape(t, fragment)] {
					t.Errorf("%s: %s leads to no element", name, to)
				}
			}
		}
		if current > 1 {
			t.Errorf("%s is in the navigation %d times", name, current)
		}
	}
	if links < 20 {
		t.Errorf("found only %d links: the test looks in the wrong place", links)
	}
}

func attribute(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

func unescape(t *testing.T, s string) string {
	t.Helper()
	return testkit.Must(url.PathUnescape(s))
}
