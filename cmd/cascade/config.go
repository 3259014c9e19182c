package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/policyhost"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/engine/report"
)

// newConfig is "cascade config": the fleet file, without running anything.
func newConfig(s *settings) *cobra.Command {
	c := group(&cobra.Command{Use: "config", Short: "Check, explain and print fleet files"})
	explain := &cobra.Command{
		Use:   "explain [FIELD]",
		Short: "Explain the fields of the fleet file",
		Long: `Explain prints the type, the default, the unit and the meaning of a field of the fleet
file, and of the fields below it. Without an argument it lists all fields.

A field is named by its path, without list indexes: "replicas.address". A policy kind may
stand for <kind>: "policies.limits.place.fuel".`,
		Example: `  cascade config explain
  cascade config explain migration
  cascade config explain replicas.address
  cascade config explain planner.period --json`,
		Args: atMost(1, "FIELD"),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return s.listFields(config.Fields())
			}
			fields, err := config.Explain(args[0])
			if err != nil {
				return err
			}
			return s.explainFields(fields)
		},
	}
	explain.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var paths []string
		for _, f := range config.Fields() {
			paths = append(paths, strings.ReplaceAll(f.Path, "[]", ""))
		}
		return paths, cobra.ShellCompDirectiveNoFileComp
	}
	file := &fleetFile{}
	check := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a fleet file, and the files that it names",
		Long: `Check reads a fleet file as the daemons do, and reports every invalid field with its line
and what to write instead. It also reads the files that the fleet file names: keys, rules
and their data, certificates, the estimator's module. With tls.trust_domain it prints the
identities in the certificates on this host; other components' may be on other hosts.
It starts nothing and connects to nothing.

A valid field that is probably not what you want is a warning. Exit code 0 means that every
daemon would start with this file, on a host with these files. (Port 0, any free port, is
for "cascade up" only: separate processes cannot find out each other's ports.)`,
		Example: "  cascade config check fleet.yaml",
		Args:    atMost(1, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 1) == (file.path != "") {
				return usageErrorf(cmd, "name one fleet file, as FILE or with -c")
			}
			return s.checkConfig(cmd.Context(), strings.Join(args, "")+file.path)
		},
	}
	file.flag(check, "fleet file, in place of FILE, as other commands take it")
	c.AddCommand(check, explain, newConfigConfirm(s), &cobra.Command{
		Use:     "example",
		Short:   "Print an example fleet file, with a comment on every field",
		Example: "  cascade config example > fleet.yaml",
		Args:    exactArgs(0),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprint(s.stdout, config.Example)
			return err
		},
	})
	return c
}

// listFields prints one line per field.
func (s *settings) listFields(fields []config.Field) error {
	t := report.Table{Header: []string{"field", "type", "default"}, Left: 3}
	for _, f := range fields {
		t.Rows = append(t.Rows, []string{f.Path, f.Type, f.Default})
	}
	return s.printTable(fields, t)
}

// explainFields prints all that is known about fields.
func (s *settings) explainFields(fields []config.Field) error {
	if s.json {
		return s.print(fields)
	}
	for i, f := range fields {
		if i > 0 {
			fmt.Fprintln(s.stdout)
		}
		unit := ""
		if f.Unit != "" {
			unit = ", in " + f.Unit
		}
		fmt.Fprintf(s.stdout, "%s: %s%s; default: %s\n", f.Path, f.Type, unit, f.Default)
		if _, err := fmt.Fprintln(s.stdout, wrapText(f.Meaning, 88, "  ")); err != nil {
			return err
		}
	}
	return nil
}

// wrapText breaks a paragraph into lines of at most width characters, each with
// an indent.
func wrapText(text string, width int, indent string) string {
	var out strings.Builder
	column := 0
	for _, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case column == 0:
			out.WriteString(indent)
		case column+1+n > width:
			out.WriteString("\n" + indent)
			column = 0
		default:
			out.WriteByte(' ')
			column++
		}
		out.WriteString(word)
		column += n
	}
	return out.String()
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
	if _, err = fmt.Fprintf(s.stdout, "%s is valid: %s, %s\n", path, plural(len(fleet.Models), "model"), plural(len(fleet.Fleet.Replicas), "replica")); err != nil {
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

// checkRules compiles the site's rules, which must be readable.
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
