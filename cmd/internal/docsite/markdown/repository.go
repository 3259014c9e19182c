package markdown

import (
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"strings"
)

// Repository reads the Markdown files below a folder, each of them once. It is not safe for concurrent use.
type Repository struct {
	files fs.FS
	read  map[string]*Document // by path
}

// NewRepository returns the repository whose root is a file system.
func NewRepository(files fs.FS) *Repository {
	return &Repository{files: files, read: make(map[string]*Document)}
}

// Document returns the Markdown file with a slash-separated path.
func (r *Repository) Document(file string) (*Document, error) {
	if d := r.read[file]; d != nil {
		return d, nil
	}
	source, err := fs.ReadFile(r.files, file)
	if err != nil {
		return nil, err
	}
	d, err := Parse(source)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	r.read[file] = d
	return d, nil
}

// Target is where a local link leads.
type Target struct {
	Path     string // of a file or folder that exists
	Fragment string // a heading's anchor in the file, or ""
}

// Resolve returns where a local link of a file leads. It is an error if the file, the folder or the anchor does not
// exist, or is not below the repository's root.
func (r *Repository) Resolve(file string, l Link) (Target, error) {
	wrong := func(format string, args ...any) (Target, error) {
		return Target{}, fmt.Errorf("%s:%d: link to %q: "+format, append([]any{file, l.Line, l.Target}, args...)...)
	}
	u, err := url.Parse(l.Target)
	switch {
	case err != nil:
		return wrong("%w", err)
	case u.Path == "" && u.Fragment == "":
		return wrong("it leads nowhere")
	case strings.HasPrefix(u.Path, "/"):
		return wrong("it is absolute: write it relative to the file")
	}
	to := Target{Path: file, Fragment: u.Fragment}
	if u.Path != "" {
		to.Path = path.Join(path.Dir(file), u.Path)
	}
	info, err := fs.Stat(r.files, to.Path)
	if err != nil {
		return wrong("%s does not exist in the repository", to.Path)
	}
	readme := path.Join(to.Path, "README.md")
	if info.IsDir() {
		if _, err := fs.Stat(r.files, readme); err == nil {
			to.Path = readme
		}
	}
	if to.Fragment == "" {
		return to, nil
	}
	if path.Ext(to.Path) != ".md" {
		return wrong("%s has no anchors", to.Path)
	}
	d, err := r.Document(to.Path)
	switch {
	case err != nil:
		return wrong("%w", err)
	case !d.HasAnchor(to.Fragment):
		return wrong("%s has no heading with the anchor %q", to.Path, to.Fragment)
	}
	return to, nil
}
