package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/config"
	"github.com/cascadeinfer/cascade/cmd/wire"
)

// newConfig is "cascade config": the fleet file, without running anything.
func newConfig(s *settings) *cobra.Command {
	c := group(&cobra.Command{Use: "config", Short: "Check, explain and print fleet files"})
	c.AddCommand(&cobra.Command{
		Use:   "check FILE",
		Short: "Check a fleet file; every bad field is named with its line",
		Long: `Check reads a fleet file as the daemons do, and reports every bad field with its
line and what to write instead. It starts nothing and connects to nothing.
With tls.trust_domain it also reads the certificates that are on this machine, and
says whose they are. What would start and still is not wise comes as a warning.
Exit code 0 means that every daemon would start with this file. (Port 0, any free
port, is for "cascade up": one process finds out what another one got from nobody.)`,
		Args: exactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return s.checkConfig(args[0]) },
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

func (s *settings) checkConfig(path string) error {
	fleet, err := wire.Load(path)
	var certs []held
	if err == nil {
		certs, err = certificates(fleet)
	}
	if s.json {
		out := struct {
			OK           bool     `json:"ok"`
			Error        string   `json:"error,omitempty"`
			Warnings     []string `json:"warnings,omitempty"`
			Certificates []held   `json:"certificates,omitempty"`
		}{OK: err == nil, Certificates: certs}
		if why := fleet.Fleet.Forgets(); why != "" {
			out.Warnings = []string{why}
		}
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
	if why := fleet.Fleet.Forgets(); why != "" {
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
