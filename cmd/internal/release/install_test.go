package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// TestInstall: "go install" builds cascade from a module proxy, with an empty module cache. The proxy is a directory
// with the committed sources; the modules that Cascade needs come from this machine's module cache.
func TestInstall(t *testing.T) {
	const path, version, root = "github.com/cascadeinfer/cascade", "v0.1.0", "../../.."
	proxy := t.TempDir()
	dir := filepath.Join(proxy, filepath.FromSlash(path), "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	archive, err := os.Create(filepath.Join(dir, version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	tree := t.TempDir()
	if out, err := exec.Command("sh", "-c", "git -C "+root+" archive --format=tar HEAD | tar -x -C "+tree).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := zip.CreateFromDir(archive, module.Version{Path: path, Version: version}, tree); err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{version + ".mod": string(mod), version + ".info": `{"Version": "` + version + `"}`, "list": version + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cache, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	install := exec.Command("go", "install", "-trimpath", path+"/cmd/cascade@"+version)
	install.Dir = t.TempDir()
	install.Env = append(os.Environ(), "GOPROXY=file://"+proxy+",file://"+filepath.Join(strings.TrimSpace(string(cache)), "cache", "download"),
		"GOMODCACHE="+t.TempDir(), "GOBIN="+bin, "GOFLAGS=-modcacherw", "GOSUMDB=off", "CGO_ENABLED=0", "GOWORK=off")
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("go install: %v\n%s", err, out)
	}
	if out, err := exec.Command(filepath.Join(bin, "cascade"), "version").CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "cascade 0.1.0\n") {
		t.Errorf("cascade version: %s, %v; want %s", out, err, version)
	}
}
