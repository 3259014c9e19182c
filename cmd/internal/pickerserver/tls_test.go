package pickerserver

import (
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestCredentials checks which certificate the picker serves with, and that prompts do not
// leave the host in plain text.
func TestCredentials(t *testing.T) {
	none := (*certs.Provider)(nil)
	for name, x := range map[string]struct {
		flags   Flags
		own     *certs.Provider
		options int
		want    string // of the error
	}{
		"loopback":                  {flags: Flags{Host: "127.0.0.1"}},
		"loopback, asked for":       {flags: Flags{Host: "::1", Secure: true}, options: 1},
		"elsewhere":                 {flags: Flags{Host: "0.0.0.0"}, want: "not a loopback address"},
		"elsewhere, by name":        {flags: Flags{Host: "localhost"}, want: "not a loopback address"},
		"elsewhere, self-signed":    {flags: Flags{Host: "0.0.0.0", Secure: true}, options: 1},
		"elsewhere, the fleet's":    {flags: Flags{Host: "0.0.0.0"}, own: new(certs.Provider), options: 1},
		"without a certificate":     {flags: Flags{Host: "0.0.0.0", CertPath: t.TempDir()}, want: "--cert-path"},
		"loopback, the fleet's":     {flags: Flags{Host: "127.0.0.1"}, own: new(certs.Provider)},
		"loopback, a bad directory": {flags: Flags{Host: "127.0.0.1", CertPath: "/does/not/exist"}, own: none, want: "--cert-path"},
	} {
		options, err := x.flags.Credentials(x.own)
		testkit.WantError(t, err, x.want)
		if len(options) != x.options {
			t.Errorf("%s: %d options, want %d", name, len(options), x.options)
		}
	}
}
