package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// sample returns the config of an image with this test's binary and one more file, which were written at
// the given time.
func sample(t *testing.T, written time.Time) config {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program, module := filepath.Join(dir, "program"), filepath.Join(dir, "module.wasm")
	for path, content := range map[string][]byte{program: text, module: []byte("wasm")} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, written, written); err != nil {
			t.Fatal(err)
		}
	}
	return config{
		files: []file{{program, "/usr/local/bin/program"}, {module, "/usr/share/cascade/module.wasm"}},
		arch:  "amd64", version: "1.2.3", revision: "abc", created: time.Unix(1700000000, 0).UTC(),
	}
}

// readImage returns the only image of a layout, which is valid.
func readImage(t *testing.T, dir string) v1.Image {
	t.Helper()
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("%+v, %v", manifest, err)
	}
	image, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(image); err != nil {
		t.Error(err)
	}
	return image
}

// readFromImage returns a file of the image's only layer; nil if there is none.
func readFromImage(t *testing.T, image v1.Image, name string) []byte {
	t.Helper()
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%v, %v", layers, err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if err != nil {
			return nil
		}
		if h.Name == name {
			text, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			return text
		}
	}
}

// TestSameDigest: the same files give the same image, whenever and wherever they were written, and
// other files, times and versions another one.
func TestSameDigest(t *testing.T) {
	first, err := build(sample(t, time.Now()), filepath.Join(t.TempDir(), "layout"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := build(sample(t, time.Now().Add(-time.Hour)), filepath.Join(t.TempDir(), "elsewhere"))
	if err != nil || again != first {
		t.Errorf("%v and %v, %v", first, again, err)
	}
	for name, change := range map[string]func(*config){
		"time":    func(c *config) { c.created = c.created.Add(time.Second) },
		"version": func(c *config) { c.version = "1.2.4" },
		"path":    func(c *config) { c.files[1].to = "/else" },
		"content": func(c *config) {
			if err := os.WriteFile(c.files[1].from, []byte("other"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		c := sample(t, time.Now())
		change(&c)
		if other, err := build(c, filepath.Join(t.TempDir(), "layout")); err != nil || other == first {
			t.Errorf("another %s: %v, %v", name, other, err)
		}
	}
}

// TestImage reads the layout as a runtime does.
func TestImage(t *testing.T) {
	c, dir := sample(t, time.Now()), t.TempDir()
	digest, err := build(c, dir)
	if err != nil {
		t.Fatal(err)
	}
	image := readImage(t, dir)
	if got, err := image.Digest(); err != nil || got != digest {
		t.Errorf("%v, %v", got, err)
	}
	settings, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if e := settings.Config; !slices.Equal(e.Entrypoint, []string{"/usr/local/bin/program"}) || e.User != "65532:65532" || e.Labels["org.opencontainers.image.revision"] != "abc" {
		t.Errorf("%+v", e)
	}
	if settings.OS != "linux" || settings.Architecture != "amd64" || !settings.Created.Equal(c.created) {
		t.Errorf("%+v", settings)
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%v, %v", layers, err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	modes := map[string]int64{}
	r := tar.NewReader(content)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(c.created) {
			t.Errorf("%+v", h)
		}
		modes[h.Name] = h.Mode
	}
	for name, mode := range map[string]int64{"usr/": 0o755, "usr/local/bin/program": 0o555, "usr/share/cascade/module.wasm": 0o444, "usr/share/cascade/sbom.cdx.json": 0o444} {
		if modes[name] != mode {
			t.Errorf("%s: mode %o, want %o", name, modes[name], mode)
		}
	}
}

// TestBillOfMaterials: the bill names what the program is linked from.
func TestBillOfMaterials(t *testing.T) {
	dir := t.TempDir()
	if _, err := build(sample(t, time.Now()), dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, bomName))
	if err != nil {
		t.Fatal(err)
	}
	if inside := readFromImage(t, readImage(t, dir), strings.TrimPrefix(bomPath, "/")); !bytes.Equal(inside, text) {
		t.Errorf("the image's bill of materials has %d bytes, the one beside it %d", len(inside), len(text))
	}
	bom := cdx.BOM{}
	if err := cdx.NewBOMDecoder(bytes.NewReader(text), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, c := range *bom.Components {
		if c.Version == "" || !strings.HasPrefix(c.PackageURL, "pkg:golang/"+c.Name+"@") {
			t.Errorf("%+v", c)
		}
		found[c.Name] = true
	}
	if !found["std"] || !found["github.com/google/go-containerregistry"] {
		t.Errorf("found %v", found)
	}
}

// TestRefusals: what cannot be reproduced is refused.
func TestRefusals(t *testing.T) {
	self, _ := os.Executable()
	for _, tt := range []struct{ epoch, args, want string }{
		{"", "image --out x " + self + "=/p", "SOURCE_DATE_EPOCH"},
		{"1", "image --out x " + self, "must be FILE=/PATH"},
		{"1", "image --out x " + self + "=p", "must be FILE=/PATH"},
		{"1", "image --out x", "at least the program"},
		{"1", "bom", "name one program"},
		{"1", "bom no-such-file", "no-such-file"},
		{"1", "x", "image or bom"},
		{"1", "image --out x --base gcr.io/distroless/static:nonroot " + self + "=/p", "name a digest"},
		{"1", "image --out x no-such-file=/p", "no-such-file"},
	} {
		t.Setenv("SOURCE_DATE_EPOCH", tt.epoch)
		t.Chdir(t.TempDir())
		if err := run(strings.Fields(tt.args)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.args, err, tt.want)
		}
	}
}

// TestReproducible builds Cascade's image twice, from copies of the committed sources in different folders. The image
// contains the bill of materials that is beside it, of what Cascade is linked from.
func TestReproducible(t *testing.T) {
	var digests []string
	for range 2 {
		dir := t.TempDir()
		for _, line := range []string{
			"git -C ../../.. archive --format=tar HEAD | tar -x -C " + dir,
			"make -s -C " + dir + " image IMAGE_VERSION=0.1.0 IMAGE_REVISION=test SOURCE_DATE_EPOCH=1700000000",
		} {
			if out, err := exec.Command("sh", "-c", line).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", line, err, out)
			}
		}
		text, err := os.ReadFile(filepath.Join(dir, "out", "image", "cascade", "index.json"))
		if err != nil {
			t.Fatal(err)
		}
		var index v1.IndexManifest
		if err := json.Unmarshal(text, &index); err != nil {
			t.Fatal(err)
		}
		digests = append(digests, index.Manifests[0].Digest.String())
		settings, err := readImage(t, filepath.Join(dir, "out", "image", "cascade")).ConfigFile()
		if err != nil || !slices.Equal(settings.Config.Entrypoint, []string{"/usr/local/bin/cascade"}) {
			t.Errorf("%+v, %v", settings, err)
		}
		bom, err := os.ReadFile(filepath.Join(dir, "out", "image", "cascade", bomName))
		if err != nil || !bytes.Contains(bom, []byte("pkg:golang/github.com/cascadeinfer/cascade")) || !bytes.Contains(bom, []byte("pkg:golang/google.golang.org/grpc@")) {
			t.Errorf("%d bytes of bill of materials, %v", len(bom), err)
		}
		if inside := readFromImage(t, readImage(t, filepath.Join(dir, "out", "image", "cascade")), strings.TrimPrefix(bomPath, "/")); !bytes.Equal(inside, bom) {
			t.Errorf("the image's bill of materials has %d bytes, the one beside it %d", len(inside), len(bom))
		}
	}
	if digests[0] != digests[1] {
		t.Errorf("two builds: %v", digests)
	}
	t.Log(digests[0])
}
