package main

import "github.com/spf13/cobra"

// commands lists every subcommand, in the order of the help.
func commands(s *settings) []*cobra.Command {
	return []*cobra.Command{
		newUp(s), newDemo(s), newStatus(s), newMigrations(s), newDrain(s), newUndrain(s), newPlan(s), newTrace(s), newReplay(s),
		newControl(s), newMigrator(s), newProxy(s), newEnvoyBootstrap(s), newAttach(s), newEngine(s),
		newConfig(s), newDevices(s), newTLS(s), newPolicy(s), newProfiles(s),
	}
}
