package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/xds/control"
)

// newConfigConfirm is "cascade config confirm": it applies a fleet file that removes many replicas.
func newConfigConfirm(s *settings) *cobra.Command {
	f := &controlFlags{}
	c := &cobra.Command{
		Use:   "confirm",
		Short: "Apply a changed fleet file that removes more than half of a model's replicas",
		Long: `Confirm lets the control planes apply a changed fleet file although it lacks more than half
of a model's replicas. They hold such a file back, because one that was cut, or copied from
another fleet, looks the same; "cascade status" shows what it would remove. All control
planes of the state directory then apply that list of replicas, and no other one. If the
file is wrong, mend it instead: until then the former list stays in force.

With control.any_removal in the fleet file nothing has to be confirmed.

Exit codes: 0 when the list is confirmed, 1 when none is held back, or the confirmation
cannot be stored.`,
		Example: `  cascade status | grep removal
  cascade config confirm`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			base, err := f.baseURL(cmd)
			if err != nil {
				return err
			}
			st, err := fetch[control.Status](cmd.Context(), controlRequest{base: base, path: "status"})
			if err != nil {
				return err
			}
			for _, held := range st.Faults {
				if held.Kind == control.FaultRemoval {
					r := controlRequest{base: base, method: http.MethodPost, path: "replicas/confirm", query: url.Values{"digest": {held.Object}}}
					return show(cmd.Context(), s, r, func(w io.Writer, _ control.Status) error {
						line := "confirmed: control planes apply the fleet file"
						if held.Removes != "" {
							line = fmt.Sprintf("confirmed: the fleet file removes %s; control planes apply it", held.Removes)
						}
						_, err := fmt.Fprintln(w, line)
						return err
					})
				}
			}
			return errors.New("no removal of replicas waits to be confirmed")
		},
	}
	f.flags(c)
	return c
}
