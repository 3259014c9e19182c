package main

import "github.com/spf13/cobra"

// commands lists every subcommand, in the order of the help.
func commands(s *settings) []*cobra.Command {
	return []*cobra.Command{
		newDemo(s), newPlan(s), newTrace(s), newEngine(s), newConfig(s), newProfiles(s),
	}
}
