// Package site builds the static site of the documentation: the book in docs, and every file of the repository that
// its pages link to.
//
// Build begins at docs/index.md, whose lists of links are the navigation of each page. Markdown files become pages;
// other linked files are copied; a linked folder becomes its README.md, or else a list of its files. Pages of docs lie
// at the top of the site, all others below "repository", with the path that they have in the repository.
//
// Invariant: every link of a page leads to another host, or to a file and an anchor of the site. A link that leads
// nowhere is an error, and nothing is written then.
package site

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/cmd/internal/docsite/markdown"
)

// Bounds of a site. What exceeds them is a mistake, such as a link to a folder of build results.
const (
	maxFiles = 1000
	maxSize  = 16 << 20 // of a copied file, in bytes
)

// Index is the page with the navigation, at the site's root.
const Index = "docs/index.md"

//go:embed page.html
var pageHTML string

//go:embed style.css
var styleCSS []byte

var pageTemplate = template.Must(template.New("page").Parse(pageHTML))

// Site is a built site: the content of its files by their slash-separated paths.
type Site map[string][]byte

// Section is a part of the navigation.
type Section struct {
	Title string
	Links []Link
}

// Link is a link of a page: URL is relative to it.
type Link struct {
	Title, URL string
	Current    bool // the page itself
}

// page is what the template gets.
type page struct {
	Title, Home, Style string
	Sections           []Section
	Body               template.HTML
	Previous, Next     *Link
}

// builder builds one site.
type builder struct {
	files      fs.FS
	repository *markdown.Repository
	navigation []navSection
	queue      []string // what is to be added, by its path in the repository
	queued     map[string]bool
	site       Site
}

// navSection is a part of the navigation: links to pages by their paths in the repository.
type navSection struct {
	title string
	pages []navPage
}

type navPage struct{ title, source string }

// Build builds the site of the repository whose root is a file system.
func Build(files fs.FS) (Site, error) {
	b := &builder{files: files, repository: markdown.NewRepository(files), queued: map[string]bool{}, site: Site{"style.css": styleCSS}}
	if err := b.readNavigation(); err != nil {
		return nil, err
	}
	b.add(Index)
	var failed []error
	for len(b.queue) > 0 {
		source := b.queue[0]
		b.queue = b.queue[1:]
		if err := b.build(source); err != nil {
			failed = append(failed, err)
		}
		if len(b.site) > maxFiles {
			return nil, fmt.Errorf("build the site: more than %d files: a page links to a folder that is no documentation", maxFiles)
		}
	}
	return b.site, errors.Join(failed...)
}

func (b *builder) read(source string) ([]byte, error) {
	info, err := fs.Stat(b.files, source)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxSize {
		return nil, fmt.Errorf("%s: %d bytes exceed the limit of %d: documentation does not link to such files", source, info.Size(), maxSize)
	}
	return fs.ReadFile(b.files, source)
}

// readNavigation makes a section of each heading of level 2 in the index that has links below it.
func (b *builder) readNavigation() error {
	index, err := b.repository.Document(Index)
	if err != nil {
		return err
	}
	for _, part := range index.Parts() {
		s := navSection{title: part.Title}
		for _, l := range part.Listed {
			to, err := b.repository.Resolve(Index, l)
			if err != nil {
				return err
			}
			s.pages = append(s.pages, navPage{l.Text, to.Path})
		}
		if len(s.pages) > 0 {
			b.navigation = append(b.navigation, s)
		}
	}
	if len(b.navigation) == 0 {
		return fmt.Errorf("%s: no heading of level 2 has a list of links: the site would have no navigation", Index)
	}
	return nil
}

// add puts a file or folder of the repository into the queue, once.
func (b *builder) add(source string) {
	if !b.queued[source] {
		b.queued[source] = true
		b.queue = append(b.queue, source)
	}
}

// build adds the page or the copy of a file, or the page of a folder.
func (b *builder) build(source string) error {
	info, err := fs.Stat(b.files, source)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return b.buildFolder(source)
	case path.Ext(source) == ".md":
		return b.buildPage(source)
	}
	text, err := b.read(source)
	if err == nil {
		b.site[b.at(source)] = text
	}
	return err
}

func (b *builder) buildPage(source string) error {
	d, err := b.repository.Document(source)
	if err != nil {
		return err
	}
	var failed []error
	var body bytes.Buffer
	err = d.Render(&body, func(l markdown.Link) string {
		if !l.Local() {
			return l.Target
		}
		to, err := b.repository.Resolve(source, l)
		if err != nil {
			failed = append(failed, err)
			return l.Target
		}
		b.add(to.Path)
		on := b.relative(source, to.Path)
		if to.Fragment != "" {
			on += "#" + to.Fragment
		}
		return on
	})
	if err = errors.Join(append(failed, err)...); err != nil {
		return err
	}
	return b.write(source, d.Title(), body.Bytes())
}

// buildFolder adds a page that lists a folder.
func (b *builder) buildFolder(source string) error {
	entries, err := fs.ReadDir(b.files, source)
	if err != nil {
		return err
	}
	var list strings.Builder
	fmt.Fprintf(&list, "<h1>%s</h1>\n<ul>\n", template.HTMLEscapeString(source))
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata" {
			continue
		}
		to, err := b.repository.Resolve(path.Join(source, "in"), markdown.Link{Target: (&url.URL{Path: "./" + e.Name()}).String()})
		if err != nil {
			return err
		}
		b.add(to.Path)
		fmt.Fprintf(&list, "<li><a href=\"%s\">%s</a></li>\n", template.HTMLEscapeString(b.relative(source, to.Path)), template.HTMLEscapeString(e.Name()))
	}
	list.WriteString("</ul>\n")
	return b.write(source, source, []byte(list.String()))
}

// write adds the page with a body.
func (b *builder) write(source, title string, body []byte) error {
	if title == "" {
		return fmt.Errorf("%s: no heading of level 1, which is the page's title", source)
	}
	p := page{Title: title, Home: b.relative(source, Index), Style: relativeURL(b.at(source), "style.css"), Body: template.HTML(body)}
	var all []*Link
	for _, s := range b.navigation {
		section := Section{Title: s.title}
		for _, n := range s.pages {
			section.Links = append(section.Links, Link{Title: n.title, URL: b.relative(source, n.source), Current: n.source == source})
		}
		p.Sections = append(p.Sections, section)
		for i := range section.Links {
			all = append(all, &section.Links[i])
		}
	}
	if i := slices.IndexFunc(all, func(l *Link) bool { return l.Current }); i >= 0 {
		if i > 0 {
			p.Previous = all[i-1]
		}
		if i+1 < len(all) {
			p.Next = all[i+1]
		}
	}
	var out bytes.Buffer
	if err := pageTemplate.Execute(&out, p); err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	b.site[b.at(source)] = out.Bytes()
	return nil
}

// at returns where the site has a file or folder of the repository.
func (b *builder) at(source string) string {
	to, inBook := strings.CutPrefix(source, path.Dir(Index)+"/")
	if !inBook {
		to = path.Join("repository", source)
	}
	if page, ok := strings.CutSuffix(to, ".md"); ok {
		return page + ".html"
	}
	if info, err := fs.Stat(b.files, source); err == nil && info.IsDir() {
		return path.Join(to, "index.html")
	}
	return to
}

// relative returns the URL of a file or folder on the page of another one.
func (b *builder) relative(from, to string) string { return relativeURL(b.at(from), b.at(to)) }

// relativeURL returns the URL of a file of the site on a page of it.
func relativeURL(page, file string) string {
	base, rest := strings.Split(path.Dir(page), "/"), strings.Split(file, "/")
	if base[0] == "." {
		base = nil
	}
	for len(base) > 0 && len(rest) > 1 && base[0] == rest[0] {
		base, rest = base[1:], rest[1:]
	}
	return (&url.URL{Path: strings.Repeat("../", len(base)) + strings.Join(rest, "/")}).String()
}

// Write writes the site into a directory, which must not exist, be empty, or hold a site that Write wrote: that one is
// replaced as a whole.
func (s Site) Write(dir string) error {
	const mark = ".built"
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(entries) > 0 && !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == mark }) {
		return fmt.Errorf("write the site: %s has other files: name a directory that is empty or does not exist", dir)
	}
	fresh := dir + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	for name, text := range s {
		file := path.Join(fresh, name)
		if err := os.MkdirAll(path.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return err
		}
	}
	if err := os.WriteFile(path.Join(fresh, mark), nil, 0o644); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.Rename(fresh, dir)
}
