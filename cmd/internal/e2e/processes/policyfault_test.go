package processes

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
	"github.com/cascadeinfer/cascade/xds/control"
)

// signer signs modules for a fleet that has its key.
type signer struct{ dir string }

// newSigner makes a key, and returns the file of its public part for setup.files.
func newSigner(t testing.TB) (s signer, public []byte) {
	s.dir = t.TempDir()
	command(t, "policy", "keygen", filepath.Join(s.dir, "ops"))
	return s, testkit.Must(os.ReadFile(filepath.Join(s.dir, "ops.pub")))
}

// sign writes a signed module that places requests by the body of a function, and returns its file.
func (s signer) sign(t testing.TB, name, generation string, body []byte) string {
	t.Helper()
	path := filepath.Join(s.dir, name+".wasm")
	module := hosttest.Policy(hosttest.Function(abi.Place.Export(), nil, body))
	testkit.NoError(t, os.WriteFile(path, module.Encode(), 0o600))
	key := filepath.Join(s.dir, "ops.key")
	command(t, "policy", "sign", path, "--key", key, "--name", name, "--version", "1.0.0", "--generation", generation)
	return path
}

// policyFaults are those of modules.
func (f *fleet) policyFaults(t *testing.T, s signer) []faultRow {
	module := s.sign(t, "broken", "10", hosttest.Op(0)) // unreachable
	return []faultRow{{
		name: "every host rejects a module", kind: control.FaultPolicy, object: abi.Place.String(),
		text:    "generation 10: r[012]: warm: .*unreachable; 2 other hosts report the same",
		witness: f.replicas[2].logs("policy ended.*phase=rejected"),
		inject:  func() { f.planes[0].cascade("policy", "push", module, "--goal", "shadow") },
		heal:    func() { f.planes[0].cascade("policy", "rollback", abi.Place.String(), "--reason", "broken") },
	}}
}
