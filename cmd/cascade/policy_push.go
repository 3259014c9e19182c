package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/fleetview"
	"github.com/cascadeinfer/cascade/cmd/internal/policydev"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// pushRequest is a module to push to the slots of a fleet.
type pushRequest struct {
	slots                            []string
	goal, scope, by                  string
	permille                         int
	module, signature, configuration []byte
}

// request returns the request that pushes the module.
func (p pushRequest) request(base *url.URL) (controlRequest, error) {
	q := url.Values{"slot": p.slots, "goal": {p.goal}, "by": {p.by}}
	if p.permille != 0 {
		q.Set("permille", strconv.Itoa(p.permille))
	}
	if p.scope != "" {
		q.Set("scope", p.scope)
	}
	body, err := json.Marshal(struct {
		Module        []byte `json:"module"`
		Signature     []byte `json:"signature"`
		Configuration []byte `json:"configuration,omitempty"`
	}{p.module, p.signature, p.configuration})
	return controlRequest{base: base, method: http.MethodPost, path: "policies/push", query: q, document: body}, err
}

// check reports what every control plane would reject, before the module is
// sent.
func (p pushRequest) check(cmd *cobra.Command) error {
	if err := requireSlots(cmd, p.slots); err != nil {
		return err
	}
	for _, slot := range p.slots {
		scope := p.scope
		if scope == "" && !lifecycle.Kind(slot).PerRequest() {
			scope = "any" // the control plane checks it
		}
		goal, err := lifecycle.ParseGoal(p.goal)
		if err == nil {
			err = policyslots.CheckGoal(lifecycle.Kind(slot), goal, p.permille, scope)
		}
		if err != nil {
			// ParseGoal's and CheckGoal's errors begin with the parameter, goal, permille or scope,
			// which is also the flag's name.
			return cli.Usagef(cmd, "--slot %s: --%v", slot, err)
		}
	}
	return nil
}

func newPolicyPush(s *settings) *cobra.Command {
	o, b := &slotFlags{}, &policyBuildFlags{}
	var kinds []string
	var signature, config string
	c := &cobra.Command{
		Use:   "push FILE|DIR",
		Short: "Push a signed module to a running fleet, in shadow first",
		Long: `Push sends FILE and FILE.sig to the control plane, which checks the signatures, the
exports and the site's rules, stores the module, and publishes it to every host by xDS.
Each host verifies the signatures again, compiles the module without delaying calls, and
promotes it as far as --goal says:

  warm     compiled only
  shadow   answers recorded calls; the answers are only compared, and the status counts differences
  canary   answers a share of the requests (--permille), or for one --scope
  active   answers all of them, once it has passed the gates
  stable   answers at once, without gates: when you know it from another fleet

Each host rolls it back when it traps, runs out of fuel or breaks a rule,
or on its way beyond shadow when too many of its answers are worse than those of the
policy in force; then the whole fleet rolls back. With --goal shadow a worse one stays in shadow
and can be observed: the status says "would not be promoted", and by how many of its answers. "cascade policy
promote" raises its goal, "cascade policy rollback" ends it. Without modules, and whenever
one fails, the built-in policies decide.`,
		Example: `  cascade policy push my-refiner.wasm
  cascade policy push bids.wasm --slot bid-select --goal canary --permille 10
  cascade policy push outlier.wasm --configuration outlier.conf --goal stable`,
		Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p := pushRequest{slots: kinds, goal: o.goal, scope: o.scope, by: o.by, permille: o.permille}
			path, err := b.module(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if p.module, err = policydev.ReadModule(path); err != nil {
				return err
			}
			if signature == "" {
				signature = path + policydev.SignatureSuffix
			}
			file, err := policydev.ReadSignature(signature)
			if err != nil {
				return fmt.Errorf("%w; \"cascade policy sign\" creates one", err)
			}
			if p.signature, err = file.Encode(); err != nil {
				return fmt.Errorf("%s: %w", signature, err)
			}
			if p.configuration, err = readConfiguration(config); err != nil {
				return err
			}
			if err := file.Statement.CheckConfiguration(p.configuration); err != nil {
				return err
			}
			if len(kinds) == 0 {
				for _, g := range file.Statement.Grants {
					p.slots = append(p.slots, g.Kind.String())
				}
			}
			p.permille = o.share(p.slots, p.goal)
			if err := p.check(cmd); err != nil {
				return err
			}
			base, err := o.baseURL(cmd)
			if err != nil {
				return err
			}
			r, err := p.request(base)
			if err != nil {
				return err
			}
			return show(cmd.Context(), s, r, fleetview.WriteGoals)
		},
	}
	b.flags(c)
	o.flags(c)
	o.canary(c)
	f := c.Flags()
	f.StringSliceVar(&kinds, "slot", nil, "slots that get it; empty: all that its statement lets it decide")
	f.StringVar(&o.goal, "goal", lifecycle.ToShadow.String(), "how far it may go: warm, shadow, canary, active or stable")
	f.StringVar(&signature, "signature", "", "signature file; empty: FILE.sig")
	f.StringVar(&config, "configuration", "", "file with what the module is configured with: what was signed")
	cli.CompleteFrom(c, "slot", lifecycle.KindNames())
	cli.CompleteFrom(c, "goal", lifecycle.GoalNames())
	return c
}
