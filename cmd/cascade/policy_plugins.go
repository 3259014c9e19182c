package main

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/inprocess"
	"github.com/cascadeinfer/cascade/cmd/internal/policydev"
	"github.com/cascadeinfer/cascade/cmd/internal/policyhost"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/internal/atomicfile"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

const (
	// pluginsFolder is the directory beside the program into which "make plugins" puts the built-in
	// policies.
	pluginsFolder = "plugins"
	// runKeyFile is the file in the fleet's state directory that holds the key of "cascade up".
	runKeyFile = "up.key"
	// activeTimeout bounds the wait for modules that a run pushes. Compiling all of them takes some
	// 10 s on two slow cores, and a moment if they were compiled before.
	activeTimeout = 90 * time.Second
)

// pluginFlags select whether a fleet in this process runs modules.
type pluginFlags struct {
	native bool
	folder string
}

func (p *pluginFlags) flags(c *cobra.Command) {
	c.Flags().BoolVar(&p.native, "native", false, "use the native policies of this program instead of WebAssembly modules")
	c.Flags().StringVar(&p.folder, "plugins", "", "directory with the modules of the built-in policies; default: plugins, beside this program")
}

// policyPlugin is a built-in policy as a signed module.
type policyPlugin struct {
	wiring.BuiltinModule
	Module, Signature []byte
	Statement         sign.Statement
}

// preparePlugins makes a fleet trust the modules of the built-in policies, which it signs with a
// key of this process or of the fleet's state directory. It returns the modules to push. It returns
// none if the flags say so, if the fleet trusts keys of its own, or if there is no directory of
// modules; it prints the last case.
func (s *settings) preparePlugins(f *wiring.Fleet, p pluginFlags) ([]policyPlugin, error) {
	if p.native {
		f.Fleet.Policies.Native = true
	}
	if f.Fleet.Policies.Native || len(f.Fleet.Policies.Keys) > 0 {
		return nil, nil
	}
	folder := p.folder
	if folder == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		folder = filepath.Join(filepath.Dir(self), pluginsFolder)
		if _, err := os.Stat(folder); errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintf(s.Stderr, "no modules in %s (\"make plugins\" builds them): the native policies decide\n", folder)
			f.Fleet.Policies.Native = true
			return nil, nil
		}
	}
	secret, err := signingKey(f.StateDir())
	if err != nil {
		return nil, err
	}
	var all []policyPlugin
	for _, b := range f.BuiltinModules() {
		code, err := policydev.ReadModule(filepath.Join(folder, b.Name+".wasm"))
		if err != nil {
			return nil, fmt.Errorf("--plugins: %w; \"make plugins\" builds it, --native does without", err)
		}
		one := policyPlugin{BuiltinModule: b, Module: code, Statement: sign.Statement{
			Fleet: f.ModuleFleet(), Digest: lifecycle.Sum(code), ABI: abi.Name, Name: b.Name, Version: cli.Version, Generation: lifecycle.Generation(time.Now().Unix()),
			Configuration: sign.SumOf(b.Configuration),
		}}
		for _, k := range b.Kinds {
			one.Statement.Grants = append(one.Statement.Grants, sign.Grant{Kind: k})
		}
		file, err := sign.Sign(sign.File{Statement: one.Statement}, secret)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", b.Name, err)
		}
		if one.Signature, err = file.Encode(); err != nil {
			return nil, fmt.Errorf("%s: %w", b.Name, err)
		}
		all = append(all, one)
	}
	f.Trusted = append(f.Trusted, secret.Public().(ed25519.PublicKey))
	if dir, err := os.UserCacheDir(); err == nil && f.Fleet.Policies.Directory == "" {
		f.CodeCache = filepath.Join(dir, "cascade", "modules")
	}
	return all, nil
}

// signingKey returns the key with which a run signs the built-in policies. If the fleet has a state
// directory, this is the key of earlier runs, so that the modules that they pushed are still
// trusted.
func signingKey(dir string) (ed25519.PrivateKey, error) {
	_, secret, err := ed25519.GenerateKey(nil)
	if err != nil || dir == "" {
		return secret, err
	}
	path := filepath.Join(dir, runKeyFile)
	text, err := os.ReadFile(path)
	if err == nil {
		if secret, err = sign.ParseSecret(text); err != nil {
			return nil, fmt.Errorf("%s: %w; remove the file to create a new key", path, err)
		}
		return secret, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if _, text, err = sign.EncodeKeys(secret); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return secret, atomicfile.Write(path, text, 0o600)
}

// pushPlugins pushes the modules to a running fleet, as an operator would, and waits until they are
// active.
func pushPlugins(ctx context.Context, f *inprocess.Fleet, all []policyPlugin) error {
	base, err := url.Parse(f.AdminURL())
	if err != nil {
		return err
	}
	for _, p := range all {
		order := pushRequest{goal: lifecycle.ToStable.String(), module: p.Module, signature: p.Signature, configuration: p.Configuration, by: "this run"}
		for _, k := range p.Kinds {
			order.slots = append(order.slots, k.String())
		}
		r, err := order.request(base)
		if err == nil {
			_, err = r.send(ctx)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, activeTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		waits := pendingPlugin(f.Hosts(), all)
		if waits == "" {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if context.Cause(ctx) != context.DeadlineExceeded {
				return context.Cause(ctx)
			}
			return fmt.Errorf("%s after %v; the native policies decide meanwhile", waits, activeTimeout)
		}
	}
}

// pendingPlugin returns a slot that does not run its module yet, or "" if all do.
func pendingPlugin(hosts []*policyhost.Host, all []policyPlugin) string {
	for _, h := range hosts {
		for _, s := range h.Slots.Status() {
			for _, p := range all {
				for _, k := range p.Kinds {
					if k.String() == string(s.Kind) && s.Active != p.Statement.Generation {
						if len(s.Modules) > 0 && s.Modules[0].Reason != "" {
							return fmt.Sprintf("%s of %s is %s (%s)", p.Name, k, s.Modules[0].Phase, s.Modules[0].Why())
						}
						return fmt.Sprintf("%s does not decide in %s", p.Name, k)
					}
				}
			}
		}
	}
	return ""
}
