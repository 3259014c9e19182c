// Package hosttest provides modules and signatures for tests of package host and its
// users: a module in standard Go that decides every kind as the native policies do, and
// small ones, good and bad, that are assembled from instructions. It is for tests only.
package hosttest

import (
	"crypto/ed25519"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

var (
	buildMu sync.Mutex
	built   = map[string][]byte{} // guarded by buildMu
)

// Build builds the main package in dir, or the program that is one Go file, as a module, as
// "make plugins" does, once per process. Without a go command it skips the test, or fails it under CI. It fails the
// test if the package does not build.
func Build(t testing.TB, dir string) []byte {
	t.Helper()
	if strings.HasSuffix(dir, ".go") {
		return build(t, filepath.Dir(dir), filepath.Base(dir))
	}
	return build(t, dir, ".")
}

// Guest builds the Go guest.
func Guest(t testing.TB) []byte {
	t.Helper()
	return build(t, "", "github.com/cascadeinfer/cascade/wasm/host/hosttest/testdata/guest")
}

func build(t testing.TB, dir, pkg string) []byte {
	t.Helper()
	testkit.SkipUnderRace(t)
	testkit.Tool(t, "go")
	buildMu.Lock()
	defer buildMu.Unlock()
	if code := built[dir+pkg]; code != nil {
		return code
	}
	out := filepath.Join(t.TempDir(), "policy.wasm")
	cmd := exec.Command("go", "build", "-buildmode=c-shared", "-trimpath", "-buildvcs=false", "-ldflags=-w -buildid=", "-o", out, pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "GOWASM=", "GOFLAGS=", "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build in %s: %v\n%s", dir, err, msg)
	}
	code, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	built[dir+pkg] = code
	return code
}

// Cache returns the folder for machine code that the tests of all packages share, and keep
// from run to run: the host takes a second to compile a module in Go. Its entries depend on
// the code and the engine only.
func Cache(t testing.TB) string {
	t.Helper()
	user, err := os.UserCacheDir()
	if err != nil {
		return t.TempDir()
	}
	dir := filepath.Join(user, "cascade-test", "machine-code")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return t.TempDir()
	}
	return dir
}

// Key returns the secret key with a number. Ring has the public key of the first.
func Key(n byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed([]byte(strings.Repeat(string(rune('a'+n)), ed25519.SeedSize)))
}

// Ring accepts statements that Key(0) signed.
var Ring = sign.Ring{Fleet: sign.DefaultFleet, Keys: []ed25519.PublicKey{Key(0).Public().(ed25519.PublicKey)}, Threshold: 1}

// Statement returns a statement about a module, for the kinds.
func Statement(generation lifecycle.Generation, module []byte, kinds ...abi.Kind) sign.Statement {
	s := sign.Statement{Fleet: sign.DefaultFleet, Digest: lifecycle.Sum(module), ABI: abi.Name, Name: "test", Version: "1.2.3", Generation: generation}
	for _, k := range kinds {
		s.Grants = append(s.Grants, sign.Grant{Kind: k})
	}
	return s
}

// Signed returns the signature file of a statement, with the expected answers that it
// names, by these keys. It may be called from any goroutine.
func Signed(t testing.TB, s sign.Statement, golden []byte, keys ...byte) []byte {
	t.Helper()
	f := sign.File{Statement: s, Golden: golden}
	var err error
	for _, k := range keys {
		if f, err = sign.Sign(f, Key(k)); err != nil {
			t.Error(err)
			return nil
		}
	}
	b, err := f.Encode()
	if err != nil {
		t.Error(err)
	}
	return b
}
