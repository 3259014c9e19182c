package main

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/policydev"
	"github.com/cascadeinfer/cascade/internal/atomicfile"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/calllog"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

func newPolicyKeygen(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "keygen NAME",
		Short: "Create a key pair to sign modules",
		Long: `Keygen creates an ed25519 key pair: NAME.key, which is secret and readable by you only, and
NAME.pub for hosts that trust it. It does not overwrite files. The files are PEM, as
"openssl genpkey -algorithm ed25519" writes them; keys of other programs work as well.`,
		Example: `  cascade policy keygen author`,
		Args:    cli.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			public, secret, err := ed25519.GenerateKey(nil)
			if err != nil {
				return err
			}
			pub, key, err := sign.EncodeKeys(secret)
			if err != nil {
				return err
			}
			if err := writeNew(args[0]+".key", key, 0o600); err != nil {
				return err
			}
			if err := writeNew(args[0]+".pub", pub, 0o644); err != nil {
				return errors.Join(err, os.Remove(args[0]+".key"))
			}
			out := struct {
				ID     string `json:"id"`
				Secret string `json:"secret"`
				Public string `json:"public"`
			}{sign.IDOf(public).String(), args[0] + ".key", args[0] + ".pub"}
			return s.PrintLine(out, "key %s: %s is secret, %s is for those who trust it", out.ID, out.Secret, out.Public)
		},
	}
}

// writeNew writes a file that must not exist.
func writeNew(path string, text []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists, and keys are not overwritten; choose another name", path)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// policySignFlags are the flags of "cascade policy sign".
type policySignFlags struct {
	policyBuildFlags
	key, name, version string
	fleet              string
	generation         uint64
	notAfter           string
	kinds, limits      []string
	signature          string
	configuration      string
	golden             string
}

func newPolicySign(s *settings) *cobra.Command {
	f := &policySignFlags{}
	c := &cobra.Command{
		Use:   "sign FILE|DIR",
		Short: "Sign a module: what it is, what it may decide, until when",
		Long: `Sign writes FILE.sig: a statement about the module, with a signature. The statement has
the module's digest, a name and a version, the kinds that it may decide with
the limits of a call, an end, and a generation. Hosts admit no statement of a lower
generation than the last one, so that an old module cannot return; to go back, make a new
statement. The default is the current Unix time in seconds.

With --configuration the statement binds what the module is to be configured with: hosts
configure it with that and nothing else, and without it, with nothing.

What the module is expected to answer, which "cascade policy test --update" writes to
FILE.golden, is signed, too, and carried in FILE.sig: a host on which the module gives
another answer, or takes other fuel, does not run it.

Where hosts want several signatures, the others sign FILE.sig with nothing but --key: they
add theirs to the statement that is there. What it says is printed; read it first.`,
		Example: `  cascade policy sign my-refiner.wasm --key author.key --name my-refiner --version 1.2.0
  cascade policy sign my-refiner.wasm --key reviewer.key
  cascade policy sign bids.wasm --key author.key --name bids --version 1.0.0 --kind bid-select --limit bid-select=20000 --not-after 2027-06-30`,
		Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.key == "" {
				return cli.Usagef(cmd, "name the secret key with --key; \"cascade policy keygen\" creates one")
			}
			path, err := f.module(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return s.sign(cmd, f, path)
		},
	}
	f.policyBuildFlags.flags(c)
	l := c.Flags()
	l.StringVar(&f.key, "key", "", "file with the secret key")
	l.StringVar(&f.name, "name", "", "the policy's name")
	l.StringVar(&f.version, "version", "", "its version, as in 1.2.0")
	l.StringVar(&f.fleet, "fleet", sign.DefaultFleet, "name of the only fleet that may admit the module (its policies.fleet, or else its tls.trust_domain)")
	l.Uint64Var(&f.generation, "generation", 0, "orders statements; 0: the current Unix time in seconds")
	l.StringVar(&f.notAfter, "not-after", "", "last day (2027-06-30) or instant (RFC 3339) at which it may come to decide; what decides by then goes on; empty: no end")
	l.StringSliceVar(&f.kinds, "kind", nil, "kinds that it may decide; empty: all that it exports")
	l.StringSliceVar(&f.limits, "limit", nil, "KIND=FUEL[:MICROS[:PAGES]]: limits of a call below the hosts' own; 0 is theirs")
	l.StringVar(&f.signature, "signature", "", "signature file; empty: FILE.sig")
	l.StringVar(&f.configuration, "configuration", "", "file with what the module is to be configured with; empty: nothing")
	l.StringVar(&f.golden, "golden", "", "file with what the module is expected to answer; empty: FILE.golden, if it is there; -: none")
	return c
}

// newStatement reports whether the flags ask for a new statement rather than only a signature.
func (f *policySignFlags) newStatement(cmd *cobra.Command) bool {
	for _, name := range []string{"name", "fleet", "version", "generation", "not-after", "kind", "limit", "configuration", "golden"} {
		if cmd.Flags().Changed(name) {
			return true
		}
	}
	return false
}

func (s *settings) sign(cmd *cobra.Command, f *policySignFlags, path string) error {
	text, err := os.ReadFile(f.key)
	if err != nil {
		return err
	}
	key, err := sign.ParseSecret(text)
	if err != nil {
		return fmt.Errorf("%s: %w", f.key, err)
	}
	code, err := policydev.ReadModule(path)
	if err != nil {
		return err
	}
	at := f.signature
	if at == "" {
		at = path + policydev.SignatureSuffix
	}
	var file sign.File
	switch {
	case f.newStatement(cmd):
		if f.name == "" || f.version == "" {
			return cli.Usagef(cmd, "a new statement needs --name and --version; to sign the one in %s, set --key only", at)
		}
		if file.Golden, err = f.readGolden(path, code); err != nil {
			return err
		}
		if file.Statement, err = f.statement(cmd, path, code); err != nil {
			return err
		}
		file.Statement.Golden = sign.SumOf(file.Golden)
	case !exists(at):
		return cli.Usagef(cmd, "%s has no statement yet: set --name and --version", path)
	default:
		if file, err = policydev.ReadSignature(at); err != nil {
			return err
		}
		if file.Statement.Digest != lifecycle.Sum(code) {
			return fmt.Errorf("%s is for another module than %s (sha256 %s): make a new statement with --name and --version", at, path, lifecycle.Sum(code))
		}
	}
	if file, err = sign.Sign(file, key); err != nil {
		return err
	}
	out, err := file.Encode()
	if err != nil {
		return err
	}
	if err := atomicfile.Write(at, out, 0o644); err != nil {
		return err
	}
	return s.printStatement(at, file)
}

// readGolden reads the expected answers of the module.
func (f *policySignFlags) readGolden(path string, code []byte) ([]byte, error) {
	at := f.golden
	if at == "" && exists(path+policydev.GoldenSuffix) {
		at = path + policydev.GoldenSuffix
	}
	if at == "" || at == "-" {
		return nil, nil
	}
	text, err := policydev.ReadGolden(at)
	if err != nil {
		return nil, err
	}
	if _, err := calllog.Golden(text, lifecycle.Sum(code)); err != nil {
		return nil, fmt.Errorf("%s: %w; \"cascade policy test --update\" writes it anew", at, err)
	}
	return text, nil
}

// statement returns the statement that the flags describe.
func (f *policySignFlags) statement(cmd *cobra.Command, path string, code []byte) (sign.Statement, error) {
	st := sign.Statement{Fleet: f.fleet, Digest: lifecycle.Sum(code), ABI: abi.Name, Name: f.name, Version: f.version, Generation: lifecycle.Generation(f.generation)}
	if st.Generation == 0 {
		st.Generation = lifecycle.Generation(time.Now().Unix())
	}
	configured, err := readConfiguration(f.configuration)
	if err != nil {
		return st, err
	}
	st.Configuration = sign.SumOf(configured)
	if f.notAfter != "" {
		end, err := time.Parse(time.RFC3339, f.notAfter)
		if err != nil {
			if end, err = time.Parse(time.DateOnly, f.notAfter); err != nil {
				return st, cli.Usagef(cmd, "--not-after %q: write a day, 2027-06-30, or an instant, 2027-06-30T12:00:00Z", f.notAfter)
			}
			end = end.AddDate(0, 0, 1).Add(-time.Second) // the day's last second
		}
		if st.NotAfter = end.Unix(); st.Expired(time.Now()) {
			return st, cli.Usagef(cmd, "--not-after %s has passed: no host would load the module", f.notAfter)
		}
	}
	limits := map[string]sign.Grant{}
	for _, l := range f.limits {
		name, g, err := readLimit(l)
		if err != nil {
			return st, cli.Usagef(cmd, "--limit %q: %v", l, err)
		}
		limits[name] = g
	}
	st.Grants, err = policydev.Grants(cmd.Context(), path, f.kinds, limits, len(configured) > 0)
	if not := (*policydev.NotDecidedError)(nil); errors.As(err, &not) {
		return st, cli.Usagef(cmd, "--kind or --limit: %v, or --kind leaves it out", err)
	}
	if err != nil {
		return st, err
	}
	return st, st.Validate()
}

// readLimit reads KIND=FUEL[:MICROS[:PAGES]].
func readLimit(text string) (kind string, g sign.Grant, err error) {
	kind, rest, ok := strings.Cut(text, "=")
	parts := strings.Split(rest, ":")
	if !ok || len(parts) > 3 {
		return "", g, errors.New("want KIND=FUEL[:MICROS[:PAGES]]")
	}
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 10, 64)
		if err != nil {
			return "", g, fmt.Errorf("%q is not a number", p)
		}
		*[]*uint64{&g.Fuel, &g.Micros, &g.Pages}[i] = n
	}
	return kind, g, nil
}

// readConfiguration reads the configuration of a module. It returns nothing if no file is named.
func readConfiguration(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	return os.ReadFile(path)
}
