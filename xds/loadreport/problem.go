package loadreport

import (
	"github.com/cascadeinfer/cascade/internal/cleantext"
	"github.com/cascadeinfer/cascade/xds/api"
)

// Problem is something that does not work in a daemon, apart from its engine. A daemon that
// cannot serve is found by others; what it lacks, or will lack soon, only itself can say.
type Problem struct {
	Kind string `json:"kind"` // ProblemDescriptors, …
	Text string `json:"text"` // what is wrong, and what to do
}

// The kinds of problems.
const (
	ProblemDescriptors = "descriptors" // few file descriptors are left, so that new requests are refused
	ProblemMemory      = "memory"      // little memory is left, so that new requests are refused
	ProblemCertificate = "certificate" // a certificate expires soon, or has
	ProblemCapacity    = "capacity"    // the fleet file states another KV cache than the engine has
	problemOther       = "other"       // a kind of a later version
)

// MaxProblems is how many problems a daemon may report.
const MaxProblems = 8

// ProblemsField is the field of a proxy's node metadata with its problems: a text by kind.
const ProblemsField = "cascade.problems"

// NewProblem returns a problem that a daemon has reported. Any kind that this version does not know
// is shown as "other": kinds are labels of metrics.
func NewProblem(kind, text string) Problem {
	switch kind {
	case ProblemDescriptors, ProblemMemory, ProblemCertificate, ProblemCapacity:
	default:
		kind = problemOther
	}
	return Problem{Kind: kind, Text: cleantext.Printable(text, maxReason)}
}

// decodeProblems returns the problems of a report, and how many were dropped.
func decodeProblems(list []*api.Problem) (problems []Problem, dropped int) {
	if len(list) > MaxProblems {
		list, dropped = list[:MaxProblems], len(list)-MaxProblems
	}
	for _, p := range list {
		problems = append(problems, NewProblem(p.GetKind(), p.GetText()))
	}
	return problems, dropped
}
