package policy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Built is a module that was built.
type Built struct {
	File     string `json:"file"`
	Language string `json:"language"` // "go", "c" or "rego"
	Compiler string `json:"compiler"` // its command; for Rego, OPA's version
	Bytes    int    `json:"bytes"`
	SHA256   string `json:"sha256"`
}

// Build compiles the policy in a folder to a file, as "make plugins" builds ours:
// the same sources and toolchain give the same bytes wherever they are. Rules in
// Rego may be one file, too. "" as out is the folder's name with ".wasm", in it, or
// beside the file. compiler is the command of a C compiler that knows wasm32, ""
// for what can be found.
func Build(ctx context.Context, dir, out, compiler string) (Built, error) {
	if strings.HasSuffix(dir, regoExt) {
		return buildRego(ctx, []string{dir}, out)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return Built{}, err
	}
	if out == "" {
		out = filepath.Join(dir, filepath.Base(abs)+".wasm")
	}
	goFiles, _ := filepath.Glob(filepath.Join(dir, "*.go")) // the patterns are good
	cFiles, _ := filepath.Glob(filepath.Join(dir, "*.c"))
	if rules, _ := filepath.Glob(filepath.Join(dir, "*"+regoExt)); len(goFiles)+len(cFiles) == 0 && len(rules) > 0 {
		return buildRego(ctx, rules, out)
	}
	b := Built{File: out}
	temp, err := os.MkdirTemp("", "cascade-policy")
	if err != nil {
		return b, err
	}
	defer os.RemoveAll(temp)
	made := filepath.Join(temp, "policy.wasm")
	var cmd *exec.Cmd
	switch {
	case len(goFiles) > 0:
		b.Language, b.Compiler = "go", "go build"
		cmd = exec.CommandContext(ctx, "go", "build", "-buildmode=c-shared", "-trimpath", "-buildvcs=false", "-ldflags=-w -buildid=", "-o", made, ".")
		cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "GOWASM=", "GOFLAGS=", "CGO_ENABLED=0", "GOWORK=off")
	case len(cFiles) > 0:
		b.Language = "c"
		cc, err := findC(compiler)
		if err != nil {
			return b, err
		}
		b.Compiler = strings.Join(cc, " ")
		args := append(cc[1:], "-std=c11", "-O2", "-Wall", "-Wextra", "-nostdlib", "-Wl,--no-entry", "-Wl,--strip-all", "-o", made)
		for _, f := range cFiles {
			args = append(args, filepath.Base(f)) // a path would be in the bytes
		}
		cmd = exec.CommandContext(ctx, cc[0], args...)
	default:
		return b, fmt.Errorf("%s has no Go, C or Rego file: \"cascade policy new\" begins a policy", dir)
	}
	cmd.Dir = dir
	if said, err := cmd.CombinedOutput(); err != nil {
		if errors.Is(err, exec.ErrNotFound) && b.Language == "go" {
			return b, fmt.Errorf("%w: install Go 1.26 or later to build policies written in it", err)
		}
		return b, fmt.Errorf("%s in %s: %w\n%s", b.Compiler, dir, err, bytes.TrimSpace(said))
	}
	code, err := os.ReadFile(made)
	if err != nil {
		return b, err
	}
	sum := sha256.Sum256(code)
	b.Bytes, b.SHA256 = len(code), hex.EncodeToString(sum[:])
	return b, WriteFile(out, code, 0o666)
}

// findC returns the command of a C compiler for wasm32.
func findC(command string) ([]string, error) {
	target := []string{"--target=wasm32-freestanding"}
	if command != "" {
		cc := strings.Fields(command)
		if !slices.Contains(cc, "zig") && !slices.Contains(cc, "ziglang") && !strings.HasSuffix(cc[0], "zig") {
			target = []string{"--target=wasm32-unknown-unknown"}
		}
		return append(cc, target...), nil
	}
	if zig, err := exec.LookPath("zig"); err == nil {
		return append([]string{zig, "cc"}, target...), nil
	}
	for _, python := range []string{"python3", "python"} {
		if exec.Command(python, "-c", "import ziglang").Run() == nil {
			return append([]string{python, "-m", "ziglang", "cc"}, target...), nil
		}
	}
	if clang, err := exec.LookPath("clang"); err == nil {
		if _, err := exec.LookPath("wasm-ld"); err == nil {
			return []string{clang, "--target=wasm32-unknown-unknown"}, nil
		}
	}
	return nil, errors.New("no C compiler for WebAssembly: \"pip install ziglang==0.13.0\" in the Python that is in PATH, or name one with --cc, as in --cc \"zig cc\"")
}

// WriteFile replaces a file at once or not at all.
func WriteFile(path string, content []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(mode&^0o022), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
