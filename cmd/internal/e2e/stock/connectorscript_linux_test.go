package stock

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestConnectorScript runs those tests of Cascade's connector that need neither vLLM nor PyTorch: what it believes of a
// client's parameters and of a migrator, and that its defects do not end the engine.
func TestConnectorScript(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), testkit.Tool(t, "python3"), "-B", filepath.Join("testdata", "connector_script.py"))
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join("..", "..", "..", "..", "deploy", "vllm"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
