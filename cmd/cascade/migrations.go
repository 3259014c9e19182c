package main

import (
	"context"
	"fmt"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/fleetview"
)

// maxMigrations is how many migrations a control plane returns at once.
const maxMigrations = 512

// migrationsFlags are the flags of "cascade migrations".
type migrationsFlags struct {
	controlFlags
	watchFlags
	limit int
}

// newMigrations is "cascade migrations": the latest migrations of requests.
func newMigrations(s *settings) *cobra.Command {
	f := &migrationsFlags{}
	c := &cobra.Command{
		Use:   "migrations",
		Short: "Show the latest migrations of requests between replicas",
		Long: `Migrations shows the migrations that the replicas reported to the control plane, the
newest first: those in progress and the latest that have ended.

Columns:
  cause    growth (longer than its stage), cheaper (it costs less elsewhere), outlier
           (with preset paper: its replica has more than its share), drain, spill (its
           replica is full), prefill (a prefill replica has computed its prompt) or engine
           lost; prefix is no move: the KV of a prompt's beginning was copied before its
           first token
  front    the replica that keeps the client's connection, whichever replica generates
  method   live (KV blocks copied while it decodes, with the transport), handoff (KV
           fetched by the engines' own connector) or reprompt (KV computed again from
           the token ids)
  tokens   the request's length when the migration began
  rounds   how often blocks were sent; copied: their bytes
  stall    how long the client waited for the first token after the freeze

--json prints the control plane's answer as it is.`,
		Example: `  cascade migrations --watch
  cascade migrations --limit 500 --json | jq '[.migrations[].stall_seconds] | max'`,
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.limit < 1 || f.limit > maxMigrations {
				return cli.Usagef(cmd, "--limit %d: 1 to %d", f.limit, maxMigrations)
			}
			return s.migrations(cmd, f)
		},
	}
	f.controlFlags.flags(c)
	f.watchFlags.flags(c)
	c.Flags().IntVar(&f.limit, "limit", 30, fmt.Sprintf("how many migrations, at most %d", maxMigrations))
	return c
}

func (s *settings) migrations(cmd *cobra.Command, f *migrationsFlags) error {
	limit := url.Values{"limit": {strconv.Itoa(f.limit)}}
	return s.repeat(cmd, &f.controlFlags, f.watchFlags, func(ctx context.Context, base *url.URL) error {
		return show(ctx, s, controlRequest{base: base, path: "migrations", query: limit}, fleetview.WriteMigrations)
	})
}
