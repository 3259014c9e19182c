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

// confirmRemoval confirms the fleet file that removes many replicas, and is held back for it.
func (s *settings) confirmRemoval(cmd *cobra.Command, f *controlFlags) error {
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
}
