package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// config is what an image is made of.
type config struct {
	files                         []file // the program first
	base, arch, version, revision string
	created                       time.Time
}

// file is a file of this machine and its path in the image.
type file struct{ from, to string }

// User of the image: that of distroless images, which is no user of a host.
const user = "65532:65532"

// bomPath is the bill of materials in the image, and bomName beside the layout.
const (
	bomPath = "/usr/share/cascade/sbom.cdx.json"
	bomName = "sbom.cdx.json"
)

// build writes the image and its bill of materials to out, which it replaces, and returns the
// image's digest.
func build(c config, out string) (v1.Hash, error) {
	bom, err := billOfMaterials(c.files[0].from, c)
	if err != nil {
		return v1.Hash{}, err
	}
	archive, err := archive(c, bom)
	if err != nil {
		return v1.Hash{}, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return v1.Hash{}, err
	}
	base, err := baseImage(c)
	if err != nil {
		return v1.Hash{}, err
	}
	image, err := mutate.Append(base, mutate.Addendum{
		Layer: layer, MediaType: types.OCILayer,
		History: v1.History{Created: v1.Time{Time: c.created}, CreatedBy: "make image"},
	})
	if err != nil {
		return v1.Hash{}, err
	}
	settings, err := image.ConfigFile()
	if err != nil {
		return v1.Hash{}, err
	}
	settings = settings.DeepCopy()
	settings.OS, settings.Architecture, settings.Created = "linux", c.arch, v1.Time{Time: c.created}
	settings.Config.Entrypoint, settings.Config.Cmd, settings.Config.User = []string{c.files[0].to}, nil, user
	settings.Config.Labels = map[string]string{
		"org.opencontainers.image.title":    "cascade",
		"org.opencontainers.image.source":   "https://github.com/cascadeinfer/cascade",
		"org.opencontainers.image.version":  c.version,
		"org.opencontainers.image.revision": c.revision,
		"org.opencontainers.image.created":  c.created.Format(time.RFC3339),
	}
	if image, err = mutate.ConfigFile(image, settings); err != nil {
		return v1.Hash{}, err
	}
	if err := os.RemoveAll(out); err != nil {
		return v1.Hash{}, err
	}
	to, err := layout.Write(out, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return v1.Hash{}, err
	}
	if err := to.AppendImage(image, layout.WithPlatform(v1.Platform{OS: "linux", Architecture: c.arch})); err != nil {
		return v1.Hash{}, err
	}
	if err := os.WriteFile(filepath.Join(out, bomName), bom, 0o644); err != nil {
		return v1.Hash{}, err
	}
	return image.Digest()
}

// baseImage returns the image that the files are added to.
func baseImage(c config) (v1.Image, error) {
	if c.base == "" {
		return mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), nil
	}
	reference, err := name.NewDigest(c.base)
	if err != nil {
		return nil, fmt.Errorf("--base: %w: a tag is another image tomorrow; name a digest", err)
	}
	image, err := remote.Image(reference, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: c.arch}))
	if err != nil {
		return nil, fmt.Errorf("--base %s: %w", c.base, err)
	}
	return image, nil
}

// archive returns the layer as a tar archive: the files and their folders, sorted, all of root and of
// the time of the image.
func archive(c config, bom []byte) ([]byte, error) {
	contents := map[string][]byte{bomPath: bom}
	for _, f := range c.files {
		text, err := os.ReadFile(f.from)
		if err != nil {
			return nil, err
		}
		contents[path.Clean(f.to)] = text
	}
	entries := make(map[string]tar.Header)
	for at, text := range contents {
		mode := int64(0o444)
		if at == path.Clean(c.files[0].to) {
			mode = 0o555
		}
		entries[at] = tar.Header{Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(text))}
		for dir := path.Dir(at); dir != "/"; dir = path.Dir(dir) {
			entries[dir] = tar.Header{Typeflag: tar.TypeDir, Mode: 0o755}
		}
	}
	var names []string
	for at := range entries {
		names = append(names, at)
	}
	slices.Sort(names)
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, at := range names {
		h := entries[at]
		h.Name, h.ModTime, h.Format = strings.TrimPrefix(at, "/"), c.created, tar.FormatUSTAR
		if h.Typeflag == tar.TypeDir {
			h.Name += "/"
		}
		if err := w.WriteHeader(&h); err != nil {
			return nil, err
		}
		if _, err := w.Write(contents[at]); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
