package policydev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/internal/atomicfile"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/guest"
)

// BuildResult describes a module that was built.
type BuildResult struct {
	File     string `json:"file"`
	Language string `json:"language"` // "go", "c" or "rego"
	Compiler string `json:"compiler"` // the compiler's command; for Rego, OPA's version
	Bytes    int    `json:"bytes"`
	SHA256   string `json:"sha256"`
}

// Build compiles the policy in a folder to the file out, as "make plugins" builds the
// example plugins: the same sources and toolchain give the same bytes in any folder.
// Rules in Rego may also be a single file. Tests in Go and Rego are not compiled. If out
// is "", it is ModulePath(dir). compiler is the command of a C compiler for wasm32; "" means
// the one that findC finds. Files in C can include cascade_policy.h: the folder's own, or
// else the one of this program.
//
// Build does not run the module and fetches nothing: Go modules that a policy needs must be
// downloaded before. It compiles without a sandbox, so building sources of strangers means
// trusting the compilers.
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
	goFiles, _ := filepath.Glob(filepath.Join(dir, "*.go")) // the patterns are valid
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
		if err := os.WriteFile(filepath.Join(temp, "cascade_policy.h"), guest.Header, 0o600); err != nil {
			return b, err
		}
		args := append(cc[1:], "-std=c11", "-O2", "-Wall", "-Wextra", "-nostdlib", "-I", temp, "-Wl,--no-entry", "-Wl,--strip-all", "-o", made)
		for _, f := range cFiles {
			name := filepath.Base(f) // a path would become part of the module
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
	return b.write(code)
}

// write writes the module that was built.
func (b BuildResult) write(code []byte) (BuildResult, error) {
	b.Bytes, b.SHA256 = len(code), lifecycle.Sum(code).String()
	return b, atomicfile.Write(b.File, code, 0o644)
}

// ModulePath returns the default output of Build: for a directory, the file in it with
// the directory's name and ".wasm"; for a file of rules, the file beside it with ".wasm".
func ModulePath(dir string) (string, error) {
	if strings.HasSuffix(dir, regoExt) {
		return strings.TrimSuffix(dir, regoExt) + ".wasm", nil
	}
	abs, err := filepath.Abs(dir)
	return filepath.Join(dir, filepath.Base(abs)+".wasm"), err
}

// goSettings is the environment of "go build". It sets the target, and overrides settings
// of the folder or the user that would make the go command run or fetch something. GOFLAGS
// must not be empty, because the user's setting would apply then; -trimpath is passed
// anyway. Modules are found as by default, in vendor or by go.sum.
var goSettings = []string{"GOOS=wasip1", "GOARCH=wasm", "GOWASM=", "GOFLAGS=-trimpath", "CGO_ENABLED=0", "GOWORK=off", "GOTOOLCHAIN=local", "GOPROXY=off"}

// ZigWheel is the PyPI package of the C compiler with which modules are tested.
const ZigWheel = "ziglang==0.17.0"

// findC returns the command of a C compiler for wasm32. The search depends neither on the
// folder to build nor on the working directory, because both may have files of strangers.
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
	program, _ := os.Executable() // on an error, no checkout is found
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

// askZig is a Python program that prints the path of the compiler in the package ziglang.
// It first removes the working directory from Python's search path, which "-m ziglang"
// would search first.
const askZig = `import sys
sys.path[:] = [p for p in sys.path if p]
import os, ziglang
sys.stdout.write(os.path.join(os.path.abspath(os.path.dirname(ziglang.__file__)), "zig"))`

// zigPython returns the Python that "make zig" installs into the checkout of Cascade in which
// a program is, or "".
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
