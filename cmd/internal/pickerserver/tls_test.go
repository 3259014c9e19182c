package pickerserver

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestCredentials checks which certificate the picker serves with, and that prompts do not
// leave the host in plain text.
func TestCredentials(t *testing.T) {
	for name, x := range map[string]struct {
		flags  Flags
		own    *certs.Provider
		secure bool
		want   string // of the error
	}{
		"loopback":                  {flags: Flags{Host: "127.0.0.1"}},
		"loopback, asked for":       {flags: Flags{Host: "::1", Secure: true}, secure: true},
		"elsewhere":                 {flags: Flags{Host: "0.0.0.0"}, want: "not a loopback address"},
		"elsewhere, by name":        {flags: Flags{Host: "localhost"}, want: "not a loopback address"},
		"elsewhere, self-signed":    {flags: Flags{Host: "0.0.0.0", Secure: true}, secure: true},
		"elsewhere, the fleet's":    {flags: Flags{Host: "0.0.0.0"}, own: new(certs.Provider), secure: true},
		"without a certificate":     {flags: Flags{Host: "0.0.0.0", CertPath: t.TempDir()}, want: "--cert-path"},
		"loopback, the fleet's":     {flags: Flags{Host: "127.0.0.1"}, own: new(certs.Provider)},
		"loopback, a bad directory": {flags: Flags{Host: "127.0.0.1", CertPath: "/does/not/exist"}, want: "--cert-path"},
	} {
		c, err := x.flags.Credentials(x.own, nil)
		testkit.WantError(t, err, x.want)
		if (c.config != nil) != x.secure || c.follow != nil {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// TestCertificateRenewed replaces the files of --cert-path one by one: handshakes succeed all the time, at first with
// the last certificate that matches its key.
func TestCertificateRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		write := func(name string, kind string, der []byte) {
			t.Helper()
			text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
			testkit.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
		}
		issue := func() (cert, key []byte) {
			c := testkit.Must(selfSigned(time.Now()))
			return c.Certificate[0], testkit.Must(x509.MarshalPKCS8PrivateKey(c.PrivateKey))
		}
		first, key := issue()
		write("tls.crt", "CERTIFICATE", first)
		write("tls.key", "PRIVATE KEY", key)
		f := Flags{Host: "127.0.0.1", CertPath: dir}
		c := testkit.Must(f.Credentials(nil, nil))
		stop := testkit.Run(t, c.follow)
		want := func(what string, cert []byte) {
			t.Helper()
			time.Sleep(2 * certs.Interval)
			got, err := c.config.GetCertificate(nil)
			if err != nil || !bytes.Equal(got.Certificate[0], cert) {
				t.Errorf("%s: another certificate, or %v", what, err)
			}
		}
		want("at first", first)
		second, key := issue()
		write("tls.crt", "CERTIFICATE", second)
		want("half of it is replaced", first)
		write("tls.key", "PRIVATE KEY", key)
		want("all of it is replaced", second)
		stop()
	})
}
