package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/policyhost"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
)

// newConfig is "cascade config": the fleet file, without running anything.
func newConfig(s *settings) *cobra.Command {
	c := group(&cobra.Command{Use: "config", Short: "Check, explain and print fleet files"})
	c.AddCommand(&cobra.Command{
		Use:   "check FILE",
		Short: "Check a fleet file; every bad field is named with its line",
		Long: `Check reads a fleet file as the daemons do, and reports every bad field with its
line and what to write instead. It starts nothing and connects to nothing.
It reads the files that are named there, too: keys, rules and their data, certificates,
the estimator's module. With tls.trust_domain it says whose the certificates on this
machine are, and components' own may be on other machines. What would start and still is
not wise comes as a warning. Exit code 0 means that every daemon would start with this
file, on a machine with these files. (Port 0, any free port, is for "cascade up": one
process finds out what another one got from nobody.)`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return s.checkConfig(cmd.Context(), args[0]) },
	}, &cobra.Command{
		Use:   "example",
		Short: "Print an example fleet file, with a comment on every field",
		Args:  exactArgs(0),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprint(s.stdout, config.Example)
			return err
		},
	})
	return c
}

func (s *settings) checkConfig(ctx context.Context, path string) error {
	fleet, err := wiring.Load(path)
	var certs []certificateInfo
	if err == nil {
		var bad []*config.FieldError
		certs, bad = checkCertificates(fleet)
		bad = append(fleet.Check(), bad...)
		if len(bad) == 0 {
			bad = checkRules(ctx, fleet)
		}
		err = config.LocateErrors(path, bad)
	}
	if s.json {
		out := struct {
			OK           bool              `json:"ok"`
			Error        string            `json:"error,omitempty"`
			Warnings     []string          `json:"warnings,omitempty"`
			Certificates []certificateInfo `json:"certificates,omitempty"`
		}{OK: err == nil, Warnings: fleet.Warnings(), Certificates: certs}
		if err != nil {
			out.Error = err.Error()
		}
		if jerr := json.NewEncoder(s.stdout).Encode(out); jerr != nil {
			return jerr
		}
		return err
	}
	if err != nil {
		return err
	}
	if _, err = fmt.Fprintf(s.stdout, "%s is good: %d models, %d replicas\n", path, len(fleet.Models), len(fleet.Fleet.Replicas)); err != nil {
		return err
	}
	for _, why := range fleet.Warnings() {
		if _, err := fmt.Fprintf(s.stdout, "warning: %s\n", why); err != nil {
			return err
		}
	}
	for _, h := range certs {
		if _, err := fmt.Fprintf(s.stdout, "tls: %s\n", h.line()); err != nil {
			return err
		}
	}
	return nil
}

// checkRules says what is wrong with the site's rules, which can be read.
func checkRules(ctx context.Context, fleet wiring.Fleet) []*config.FieldError {
	site, err := fleet.RegoRules()
	if err == nil {
		_, err = policyhost.NewControl(ctx, policyhost.ControlConfig{Site: site})
	}
	if err == nil {
		return nil
	}
	return []*config.FieldError{{Path: "policies.rules", Msg: strings.TrimPrefix(err.Error(), "policies.rules: ")}}
}
