package discovery

import (
	"os"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestSettingsAreDocumented checks that the guide has every label and annotation.
func TestSettingsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/kubernetes/discovery.md")
	testkit.NoError(t, err)
	for name := range settings {
		if !strings.Contains(string(text), "`"+Prefix+name+"`") {
			t.Errorf("deploy/kubernetes/discovery.md lacks %s%s", Prefix, name)
		}
	}
}
