package main

import "github.com/spf13/cobra"

// commands lists every subcommand, in the order of the help.
func commands(s *settings) []*cobra.Command {
	return []*cobra.Command{
		daemon(newUp(s)), newDemo(s), newStatus(s), newTop(s), newMigrations(s), newDrain(s), newUndrain(s), newPlan(s), newTrace(s), newReplay(s), newSim(s), newReport(s),
		daemon(newControl(s)), daemon(newMigrator(s)), daemon(newProxy(s)), daemon(newEPP(s)), newEnvoyBootstrap(s), newAttach(s), daemon(newEngine(s)),
		newConfig(s), newDevices(s), newTLS(s), newPolicy(s), newProfile(s),
	}
}
