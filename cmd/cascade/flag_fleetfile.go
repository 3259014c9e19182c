package main

import (
	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
)

// fleetFile is the flag -c.
type fleetFile struct{ path string }

func (f *fleetFile) flag(c *cobra.Command, usage string) {
	c.Flags().StringVarP(&f.path, "config", "c", "", usage)
	// The only error is a flag that does not exist.
	_ = c.MarkFlagFilename("config", "yaml", "yml")
}

// load reads the file, which c requires.
func (f *fleetFile) load(c *cobra.Command) (wiring.Fleet, error) {
	if f.path == "" {
		return wiring.Fleet{}, usageErrorf(c, "name a fleet file with -c; \"cascade config example\" prints one to start from")
	}
	return wiring.Load(f.path)
}

// replicaFlag adds --replica, which completes from the file.
func (f *fleetFile) replicaFlag(c *cobra.Command, to *string) {
	c.Flags().StringVar(to, "replica", "", "id of the replica in the fleet file")
	_ = c.RegisterFlagCompletionFunc("replica", f.completeReplicas)
}

// completeReplicas completes ids of replicas from the file.
func (f *fleetFile) completeReplicas(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	fleet, err := config.Load(f.path)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	ids := make([]string, len(fleet.Replicas))
	for i, r := range fleet.Replicas {
		ids[i] = cobra.CompletionWithDesc(r.ID, r.Model+" at "+r.Address)
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

// completeFrom makes a flag complete from a fixed list.
func completeFrom(c *cobra.Command, flag string, words []string) {
	_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}
