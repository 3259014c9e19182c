package fleetview

import (
	"fmt"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// HealthGone is the health of a replica that has left the fleet.
const HealthGone = "gone"

// IsEmpty reports whether no request runs on a replica, according to its report.
func IsEmpty(r control.Replica) bool {
	return r.Health == HealthGone || r.Connected && r.ReportAge != nil && r.Residents == 0
}

// DescribeRemaining returns what still runs on a replica.
func DescribeRemaining(r control.Replica) string {
	switch {
	case r.Health == HealthGone:
		return "it has left the fleet"
	case !r.Connected:
		return "its migrator does not report, so what runs there is unknown"
	}
	text := cli.Plural(r.Residents, "request") + " left"
	if r.Pinned > 0 {
		text += fmt.Sprintf(", %d of them pinned", r.Pinned)
		if r.PinnedSeconds > 0 {
			text += fmt.Sprintf(" (about %v more)", time.Duration(r.PinnedSeconds*float64(time.Second)).Round(time.Second))
		}
	}
	return text
}

// DescribeUndrained returns the state of a replica after undrain.
func DescribeUndrained(state control.DrainResult) string {
	switch {
	case len(state.Drain) > 0:
		return "still drained by " + strings.Join(state.Drain, " and ")
	case state.Stage == "" && state.Health == resources.Healthy.String():
		return "healthy; no control plane has given it a stage yet, see \"cascade status\""
	case state.Stage == "":
		return state.Health + "; it joins a stage once it is healthy"
	}
	return fmt.Sprintf("%s, in stage %s of %s", state.Health, state.Stage, state.Model)
}
