package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"net/http"
	"path"
	"time"
)

//go:embed web
var web embed.FS

// contentTypes are the media types of the page's files, by extension: the host's own table of
// them may be missing or wrong.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// asset is one file of the page. Browsers ask for it again each time, by its digest, so that a
// page never mixes the files of two versions.
type asset struct {
	name, kind, tag string
	content         []byte
}

// readAssets returns the files of the page by name.
func readAssets() (map[string]asset, error) {
	entries, err := web.ReadDir("web")
	if err != nil {
		return nil, err
	}
	out := make(map[string]asset, len(entries))
	for _, e := range entries {
		content, err := web.ReadFile("web/" + e.Name())
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(content)
		out[e.Name()] = asset{name: e.Name(), kind: contentTypes[path.Ext(e.Name())], tag: `"` + hex.EncodeToString(sum[:8]) + `"`, content: content}
	}
	return out, nil
}

func (a asset) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", a.kind)
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", a.tag)
	http.ServeContent(w, r, a.name, time.Time{}, bytes.NewReader(a.content))
}
