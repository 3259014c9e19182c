package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/policyhost"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/engine/report"
)

// newConfig is "cascade config": the fleet file, without running anything.
func newConfig(s *settings) *cobra.Command {
	c := cli.Group(&cobra.Command{Use: "config", Short: "Check, explain and print fleet files"})
	example := false
	explain := &cobra.Command{
		Use:   "explain [FIELD]",
		Short: "Explain the fields of the fleet file, or print one to start from (--example)",
		Long: `Explain prints the type, the default, the unit and the meaning of a field of the fleet
file, and of the fields below it. Without an argument it lists all fields. With --example
it prints an example fleet file, with a comment on every field.

A field is named by its path, without list indexes: "replicas.address".`,
		Example: `  cascade config explain --example > fleet.yaml
  cascade config explain
  cascade config explain migration
  cascade config explain replicas.address
  cascade config explain planner.period --json`,
		Args: cli.AtMost(1, "FIELD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if example && len(args) > 0 {
				return cli.Usagef(cmd, "--example prints the whole file: leave %s out", args[0])
			}
			if example {
				_, err := fmt.Fprint(s.Stdout, config.Example)
				return err
			}
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
	explain.Flags().BoolVar(&example, "example", false, "print an example fleet file")
	explain.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var paths []string
		for _, f := range config.Fields() {
			paths = append(paths, strings.ReplaceAll(f.Path, "[]", ""))
		}
		return paths, cobra.ShellCompDirectiveNoFileComp
	}
	c.AddCommand(newConfigCheck(s), explain)
	return c
}

// newConfigCheck is "cascade config check".
func newConfigCheck(s *settings) *cobra.Command {
	f, confirm := &controlFlags{}, false
	c := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a fleet file, and the files that it names; --confirm applies one that removes many replicas",
		Long: `Check reads a fleet file as the daemons do, and reports every invalid field with its line
and what to write instead. It also reads the files that the fleet file names: keys, rules
and their data, certificates, the estimator's module. With tls.trust_domain it prints the
identities in the certificates on this host; other components' may be on other hosts.
It starts nothing and, without --confirm, connects to nothing.

A valid field that is probably not what you want is a warning. Exit code 0 means that every
daemon would start with this file, on a host with these files. (Port 0, any free port, is
for "cascade up" only: separate processes cannot find out each other's ports.)

With --confirm, control planes apply a changed fleet file although it lacks more than half
of a model's replicas. They hold such a file back, because one that was cut, or copied from
another fleet, looks the same; "cascade status" shows what it would remove. All control
planes of the state directory then apply that list of replicas, and no other one. If the
file is wrong, mend it instead: until then the former list stays in force. A file that is
named is checked first, and must be the one that is held back. With control.any_removal in
the fleet file nothing has to be confirmed.

Exit codes with --confirm: 0 when the list is confirmed, 1 when none is held back, or the
confirmation cannot be stored.`,
		Example: `  cascade config check fleet.yaml
  cascade status | grep removal
  cascade config check -c fleet.yaml --confirm`,
		Args: cli.AtMost(1, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := strings.Join(args, "") + f.file.path
			if len(args) == 1 && f.file.path != "" || path == "" && !confirm {
				return cli.Usagef(cmd, "name one fleet file, as FILE or with -c")
			}
			if err := cli.RequireFlag(cmd, "confirm", "control"); err != nil {
				return err
			}
			if path != "" {
				if err := s.checkConfig(cmd.Context(), path); err != nil || !confirm {
					return err
				}
			}
			f.file.path = path
			return s.confirmRemoval(cmd, f, path)
		},
	}
	f.flags(c)
	c.Flags().Lookup("config").Usage = "fleet file, in place of FILE, as other commands take it"
	c.Flags().BoolVar(&confirm, "confirm", false, "let control planes apply the changed fleet file that they hold back")
	return c
}

// listFields prints one line per field.
func (s *settings) listFields(fields []config.Field) error {
	t := report.Table{Header: []string{"field", "type", "default"}, Left: 3}
	for _, f := range fields {
		t.Rows = append(t.Rows, []string{f.Path, f.Type, f.Default})
	}
	return s.PrintTable(fields, t)
}

// explainFields prints all that is known about fields.
func (s *settings) explainFields(fields []config.Field) error {
	if s.JSON {
		return s.Print(fields)
	}
	for i, f := range fields {
		if i > 0 {
			fmt.Fprintln(s.Stdout)
		}
		unit := ""
		if f.Unit != "" {
			unit = ", in " + f.Unit
		}
		fmt.Fprintf(s.Stdout, "%s: %s%s; default: %s\n", f.Path, f.Type, unit, f.Default)
		if _, err := fmt.Fprintln(s.Stdout, wrapText(f.Meaning, 88, "  ")); err != nil {
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
	var certs []wiring.CertificateInfo
	if err == nil {
		var bad []*config.FieldError
		certs, bad = wiring.CheckCertificates(fleet)
		bad = append(fleet.Check(), bad...)
		if len(bad) == 0 {
			bad = checkRules(ctx, fleet)
		}
		err = config.LocateErrors(path, bad)
	}
	if s.JSON {
		out := struct {
			OK           bool                     `json:"ok"`
			Error        string                   `json:"error,omitempty"`
			Warnings     []string                 `json:"warnings,omitempty"`
			Certificates []wiring.CertificateInfo `json:"certificates,omitempty"`
		}{OK: err == nil, Warnings: fleet.Warnings(), Certificates: certs}
		if err != nil {
			out.Error = err.Error()
		}
		if jerr := json.NewEncoder(s.Stdout).Encode(out); jerr != nil {
			return jerr
		}
		return err
	}
	if err != nil {
		return err
	}
	if _, err = fmt.Fprintf(s.Stdout, "%s is valid: %s, %s\n", path, cli.Plural(len(fleet.Models), "model"), cli.Plural(len(fleet.Fleet.Replicas), "replica")); err != nil {
		return err
	}
	for _, why := range fleet.Warnings() {
		if _, err := fmt.Fprintf(s.Stdout, "warning: %s\n", why); err != nil {
			return err
		}
	}
	for _, h := range certs {
		if _, err := fmt.Fprintf(s.Stdout, "tls: %s\n", h); err != nil {
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
