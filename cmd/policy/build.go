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

	"github.com/cascadeinfer/cascade/wasm"
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
// Rego may be one file, too, and tests, of Go as of rules, are no sources. "" as out is
// the folder's name with ".wasm", in it, or beside the file. compiler is the command of
// a C compiler that knows wasm32, "" for what can be found. Files in C find
// cascade_policy.h, the one of this program where their folder has none.
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
	goFiles = slices.DeleteFunc(goFiles, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
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
		cc, err := findC(compiler, abs)
		if err != nil {
			return b, err
		}
		b.Compiler = strings.Join(cc, " ")
		if err := os.WriteFile(filepath.Join(temp, "cascade_policy.h"), wasm.Header, 0o600); err != nil {
			return b, err
		}
		args := append(cc[1:], "-std=c11", "-O2", "-Wall", "-Wextra", "-nostdlib", "-I", temp, "-Wl,--no-entry", "-Wl,--strip-all", "-o", made)
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

// ZigWheel is the PyPI package of the C compiler that modules are tested with.
const ZigWheel = "ziglang==0.17.0"

// findC returns the command of a C compiler for wasm32 to build a folder with, which is
// given as an absolute path.
func findC(command, dir string) ([]string, error) {
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
	for _, python := range append(wheels(dir), "python3", "python") {
		if exec.Command(python, "-c", "import ziglang").Run() == nil {
			return append([]string{python, "-m", "ziglang", "cc"}, target...), nil
		}
	}
	if clang, err := exec.LookPath("clang"); err == nil {
		if _, err := exec.LookPath("wasm-ld"); err == nil {
			return []string{clang, "--target=wasm32-unknown-unknown"}, nil
		}
	}
	return nil, errors.New("no C compiler for WebAssembly: \"make zig\" in a checkout of Cascade, or \"pip install " + ZigWheel +
		"\" in the Python that is in PATH, or name one with --cc, as in --cc \"zig cc\"")
}

// wheels are the Pythons that "make zig" has put into the checkouts of Cascade that the
// folder, the working directory and this program are in.
func wheels(dir string) (found []string) {
	here, _ := os.Getwd()         // where there is none,
	program, _ := os.Executable() // there is no checkout either
	for _, at := range []string{dir, here, filepath.Dir(program)} {
		root := above(at)
		if root == "" {
			continue
		}
		python := filepath.Join(root, ".cache", "zig", "bin", "python")
		if _, err := os.Stat(python); err == nil && !slices.Contains(found, python) {
			found = append(found, python)
		}
	}
	return found
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
