package cli

import (
	"cmp"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/wasm/abi"
)

// Version is the version of both programs, and of the chart.
const Version = "0.1.0"

// Build describes a program.
type Build struct {
	Version string `json:"version"`
	Commit  string `json:"commit"` // "unknown" for a build outside of a checkout
	Go      string `json:"go"`
	ABI     string `json:"policy_abi"` // of the policy modules that it runs
}

// ReadBuild describes this program.
func ReadBuild() Build {
	b := Build{Version: Version, Go: runtime.Version(), ABI: abi.Name}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo)
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			b.Commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			b.Commit += ", modified"
		}
	}
	b.Commit = cmp.Or(b.Commit, "unknown")
	return b
}

// newVersion is the command "version".
func newVersion(a *App) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version, the commit, Go's version and the policy ABI",
		Example: "  " + a.program + " version",
		Args:    ExactArgs(0),
		RunE: func(*cobra.Command, []string) error {
			b := ReadBuild()
			return a.PrintLine(b, "%s %s\ncommit %s\n%s\npolicy ABI %s", a.program, b.Version, b.Commit, b.Go, b.ABI)
		},
	}
}
