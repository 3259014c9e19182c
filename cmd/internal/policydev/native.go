package policydev

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	wasm "github.com/cascadeinfer/cascade/wasm/slothost"
)

// builtin is a built-in policy. It is a Decider, which answers frames as a module with that
// policy would, without fuel.
type builtin struct {
	name string
	wasm.Native
}

var _ Decider = builtin{}

// Builtins returns the names of the built-in policies.
func Builtins() []string {
	var names []string
	for _, b := range builtins {
		names = append(names, b.name)
	}
	return names
}

// findBuiltin returns the built-in policy that decides one of the kinds and has the given
// name. The name may omit the kind if the rest is unique.
func findBuiltin(name string, kinds []abi.Kind) (builtin, error) {
	var found []builtin
	for _, b := range builtins {
		if !slices.ContainsFunc(kinds, b.Decides) {
			continue
		}
		if b.name == name {
			return b, nil
		}
		if strings.HasSuffix(b.name, "-"+name) {
			found = append(found, b)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	return builtin{}, fmt.Errorf("no built-in policy %q decides %s: use one of %s", name, joinKinds(kinds), strings.Join(Builtins(), ", "))
}

// defaultBuiltin returns the fleet's default policy of a kind, if there is one.
func defaultBuiltin(k abi.Kind) (builtin, bool) {
	for _, b := range builtins {
		if b.Decides(k) {
			return b, true
		}
	}
	return builtin{}, false
}

// A Decider answers frames.
type Decider interface {
	// Replay makes the call of a frame and records it. The error is a *host.Fault,
	// whose cause is also in the record.
	Replay(frame []byte, r *host.Record) error
}

// Replay implements Decider.
func (b builtin) Replay(frame []byte, r *host.Record) error { return b.Answer(frame, r) }

// joinKinds joins the names of kinds.
func joinKinds(kinds []abi.Kind) string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.String())
	}
	return strings.Join(names, ", ")
}
