package wiring

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestConsoleToken refuses token files that are missing, readable by others, or no secret, and repeats
// no token.
func TestConsoleToken(t *testing.T) {
	fleet := load(t, "control: {console_token_file: token}\n")
	path := filepath.Join(fleet.Dir, "token")
	check := func(want string) {
		t.Helper()
		token, err := fleet.consoleToken()
		if err == nil || token != "" || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q, %v; want %s", token, err, want)
		}
		if errs := fleet.Check(); len(errs) != 1 || errs[0].Path != "control.console_token_file" {
			t.Errorf("the check says %v", errs)
		}
	}
	write := func(text string, mode os.FileMode) {
		t.Helper()
		testkit.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		testkit.NoError(t, os.Chmod(path, mode))
	}
	check("no such file")
	for _, mode := range []os.FileMode{0o644, 0o604, 0o620, 0o602} {
		write("s3cret-s3cret-s3cret\n", mode)
		check("chmod 600")
	}
	write("s3cret\n", 0o600)
	check("16 to 256")
	write("s3cret s3cret s3cret\n", 0o600)
	check("spaces")
	write("s3cret-s3cret-s3cret\n", 0o440) // a secret of Kubernetes
	if token, err := fleet.consoleToken(); err != nil || token != "s3cret-s3cret-s3cret" || len(fleet.Check()) > 0 {
		t.Errorf("%q, %v, %v", token, err, fleet.Check())
	}
}
