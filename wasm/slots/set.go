package slots

import (
	"context"
	"fmt"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/policy"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

// Set is the slots of a host. Its methods are safe for concurrent use, before,
// during and after Run.
type Set struct {
	config Config
}

// New returns slots that the native policies serve. The error names the bad
// field. A File that cannot be read is no error of New: see Err.
func New(config Config) (*Set, error) {
	config, err := config.complete()
	if err != nil {
		return nil, fmt.Errorf("slots: %w", err)
	}
	return &Set{config: config}, nil
}

// Run builds, tries and frees modules until the context is done; then the native
// policies take over. It is called once.
func (s *Set) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Err says why no slot takes modules, with what to do about it, nil when they do:
// File is there and cannot be read, say.
func (s *Set) Err() error { return nil }

// Check says what is wrong with a want, without the modules' bytes: its form, the
// signatures of its statements, their kinds, their ends, and whether they are
// older than what this host has admitted. The error is deterministic: the same
// want is refused again.
func (s *Set) Check(w Want) error { return nil }

// Missing returns the digests of the modules that a want needs and that have to
// be fetched.
func (s *Set) Missing(w Want) []sign.Digest { return nil }

// Apply makes a want be: it offers what is new, changes goals, withdraws what is
// no longer wanted, and takes back what was rolled back. It may be called again
// with the same want, and refuses what Check refuses, changing nothing then.
// Candidates whose bytes are missing wait for a want that has them.
func (s *Set) Apply(w Want) error { return nil }

// Status tells of the slots, in the order of their kinds.
func (s *Set) Status() []Status {
	all := make([]Status, 0, len(s.config.Kinds))
	for _, k := range s.config.Kinds {
		all = append(all, Status{Kind: k.String()})
	}
	return all
}

// Records returns the recorded calls of the policy that decides a kind, the
// native one included.
func (s *Set) Records(k abi.Kind) []host.Record { return nil }

// Quoter answers as the slot of bid-quote does; where the host has no such slot,
// as the native policy. So do the others.
func (s *Set) Quoter() policies.Quoter { return s.config.Native.Quoter }

// Selector answers as the slot of bid-select does.
func (s *Set) Selector() policies.Selector { return s.config.Native.Selector }

// Detector answers as the slot of outlier does.
func (s *Set) Detector() policies.Detector { return s.config.Native.Detector }

// Placer answers as the slot of place does.
func (s *Set) Placer() policies.Placer { return s.config.Native.Placer }

// Refiner answers as the slot of refine does for a scope.
func (s *Set) Refiner(scope string) policies.Refiner { return s.config.Native.Refiner }

// Partitioner answers as the slot of partition does for a scope.
func (s *Set) Partitioner(scope string) policies.Partitioner { return s.config.Native.Partitioner }

// Guard answers as the slot of guard does for a scope.
func (s *Set) Guard(scope string) policy.Guard { return s.config.Native.Guard }
