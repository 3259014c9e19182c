package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
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
		return wiring.Fleet{}, cli.Usagef(c, "name a fleet file with -c; \"cascade config explain --example\" prints one to start from")
	}
	return wiring.Load(f.path)
}

// refuseBesideFile refuses flags that describe what a fleet file describes.
func refuseBesideFile(c *cobra.Command, what string, names ...string) error {
	for _, name := range names {
		if c.Flags().Changed(name) {
			return cli.Usagef(c, "--%s describes %s without a file; with -c, write it into the file", name, what)
		}
	}
	return nil
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

// flagReplica returns the replica that flags describe, on free loopback ports.
func flagReplica(id string, tp int) config.Replica {
	return config.Replica{ID: id, Address: "127.0.0.1:0", Peer: "127.0.0.1:0", Engine: "http://127.0.0.1:0", TP: tp}
}

// resolveFlags completes the fleet of one model that flags describe. Its errors name the flag. In a fleet file 0
// means the default; as a flag it is refused.
func resolveFlags(f config.Fleet) (wiring.Fleet, error) {
	if f.Speed == 0 {
		return wiring.Fleet{}, errors.New("--speed: 0: must be from 0.01 to 1000")
	}
	if slices.ContainsFunc(f.Replicas, func(r config.Replica) bool { return r.TP == 0 }) {
		return wiring.Fleet{}, errors.New("--tp: 0: must be from 1 to 64")
	}
	if errs := f.Validate(); len(errs) > 0 {
		return wiring.Fleet{}, nameFlag(errs[0])
	}
	w, err := wiring.Resolve(f, ".")
	return w, nameFlag(err)
}

// nameFlag returns an error about the fleet that flags describe, with the flag in place of the field.
func nameFlag(err error) error {
	if bad := (*config.FieldError)(nil); errors.As(err, &bad) {
		return fmt.Errorf("--%s: %s", bad.Path[strings.LastIndexByte(bad.Path, '.')+1:], bad.Msg)
	}
	return err
}
