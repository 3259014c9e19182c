package policydev

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

	"github.com/cascadeinfer/cascade/cmd/internal/fileio"
	"github.com/cascadeinfer/cascade/wasm"
)

// BuildResult describes a module that was built.
type BuildResult struct {
	File     string `json:"file"`
	Language string `json:"language"` // "go", "c" or "rego"
	Compiler string `json:"compiler"` // its command; for Rego, OPA's version
	Bytes    int    `json:"bytes"`
	SHA256   string `json:"sha256"`
}

// Build compiles the policy in a folder to a file, as "make plugins" builds ours:
// the same sources and toolchain give the same bytes wherever they are. Rules in
// Rego may be one file, too, and tests, of Go as of rules, are no sources. "" as out is
// ModuleOf's name. compiler is the command of a C compiler that knows wasm32, "" for what
// can be found. Files in C find cascade_policy.h, the one of this program where their
// folder has none.
//
// Nothing that is built is run, and nothing fetched: modules of Go that a policy needs
// must have been downloaded before. It is compiled without a sandbox, though, so that
// those who build what strangers wrote trust in the compilers.
func Build(ctx context.Context, dir, out, compiler string) (BuildResult, error) {
	if out == "" {
		var err error
		if out, err = ModulePath(dir); err != nil {
			return BuildResult{}, err
		}
	}
	if strings.HasSuffix(dir, regoExt) {
		return buildRego(ctx, []string{dir}, out)
	}
	goFiles, _ := filepath.Glob(filepath.Join(dir, "*.go")) // the patterns are good
	goFiles = slices.DeleteFunc(goFiles, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
	cFiles, _ := filepath.Glob(filepath.Join(dir, "*.c"))
	if rules, _ := filepath.Glob(filepath.Join(dir, "*"+regoExt)); len(goFiles)+len(cFiles) == 0 && len(rules) > 0 {
		return buildRego(ctx, rules, out)
	}
	b := BuildResult{File: out}
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
		cmd.Env = append(os.Environ(), goSettings...)
	case len(cFiles) > 0:
		b.Language = "c"
		cc, err := findC(ctx, compiler)
		if err != nil {
			return b, err
		}
		b.Compiler = strings.Join(cc, " ")
		if err := os.WriteFile(filepath.Join(temp, "cascade_policy.h"), wasm.Header, 0o600); err != nil {
			return b, err
		}
		args := append(cc[1:], "-std=c11", "-O2", "-Wall", "-Wextra", "-nostdlib", "-I", temp, "-Wl,--no-entry", "-Wl,--strip-all", "-o", made)
		for _, f := range cFiles {
			name := filepath.Base(f) // a path would be in the bytes
			if strings.HasPrefix(name, "-") || strings.HasPrefix(name, "@") {
				return b, fmt.Errorf("%s: compilers take this name for an option: rename it", f)
			}
			args = append(args, name)
		}
		cmd = exec.CommandContext(ctx, cc[0], args...)
		cmd.Env = append(os.Environ(), "PYTHONSAFEPATH=1") // for --cc "python3 -m ziglang cc"
	default:
		return b, fmt.Errorf("%s has no Go, C or Rego file: \"cascade policy new\" begins a policy", dir)
	}
	cmd.Dir = dir
	if said, err := cmd.CombinedOutput(); err != nil {
		if errors.Is(err, exec.ErrNotFound) && b.Language == "go" {
			return b, fmt.Errorf("%w: install Go 1.26 or later to build policies written in it", err)
		}
		if bytes.Contains(said, []byte("GOPROXY=off")) {
			err = fmt.Errorf("%w: a build fetches nothing: \"go mod download\" there brings the modules that are missing", err)
		}
		return b, fmt.Errorf("%s in %s: %w\n%s", b.Compiler, dir, err, bytes.TrimSpace(said))
	}
	code, err := os.ReadFile(made)
	if err != nil {
		return b, err
	}
	sum := sha256.Sum256(code)
	b.Bytes, b.SHA256 = len(code), hex.EncodeToString(sum[:])
	return b, fileio.WriteAtomic(out, code, 0o666)
}

// ModulePath returns the default output of Build for a directory or a file of
// rules: the directory's name with ".wasm" in it, or the same beside the file.
func ModulePath(dir string) (string, error) {
	if strings.HasSuffix(dir, regoExt) {
		return strings.TrimSuffix(dir, regoExt) + ".wasm", nil
	}
	abs, err := filepath.Abs(dir)
	return filepath.Join(dir, filepath.Base(abs)+".wasm"), err
}

// goSettings are the environment of "go build": what is to come out, and that neither
// the folder nor the user's settings of the go command make it run or fetch something.
// An empty GOFLAGS would leave the place to those; -trimpath is given anyway, and modules
// are found as by default, in vendor or as go.sum says.
var goSettings = []string{"GOOS=wasip1", "GOARCH=wasm", "GOWASM=", "GOFLAGS=-trimpath", "CGO_ENABLED=0", "GOWORK=off", "GOTOOLCHAIN=local", "GOPROXY=off"}

// ZigWheel is the PyPI package of the C compiler that modules are tested with.
const ZigWheel = "ziglang==0.17.0"

// findC returns the command of a C compiler for wasm32. Where it is looked for does not
// depend on what is to be built, nor on the working directory, which may be that: both
// may be a stranger's.
func findC(ctx context.Context, command string) ([]string, error) {
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
	program, _ := os.Executable() // without it there is no checkout
	for _, python := range []string{zigPython(program), "python3", "python"} {
		if python == "" {
			continue
		}
		if zig, err := exec.CommandContext(ctx, python, "-c", askZig).Output(); err == nil {
			return append([]string{string(zig), "cc"}, target...), nil
		}
	}
	if clang, err := exec.LookPath("clang"); err == nil {
		if _, err := exec.LookPath("wasm-ld"); err == nil {
			return []string{clang, "--target=wasm32-unknown-unknown"}, nil
		}
	}
	return nil, errors.New("no C compiler for WebAssembly: \"make zig\" in the checkout of Cascade that this program lies in, or \"pip install " + ZigWheel +
		"\" in the Python that is in PATH, or name one with --cc, as in --cc \"zig cc\"")
}

// askZig has Python say where the compiler of its package ziglang lies. The first place
// where Python looks is the working directory; its "-m ziglang" would, too.
const askZig = `import sys
sys.path[:] = [p for p in sys.path if p]
import os, ziglang
sys.stdout.write(os.path.join(os.path.abspath(os.path.dirname(ziglang.__file__)), "zig"))`

// zigPython is the Python that "make zig" has put into the checkout of Cascade that a program
// lies in, or "".
func zigPython(program string) string {
	root := findCheckout(filepath.Dir(program))
	if root == "" {
		return ""
	}
	python := filepath.Join(root, ".cache", "zig", "bin", "python")
	if _, err := os.Stat(python); err != nil {
		return ""
	}
	return python
}
