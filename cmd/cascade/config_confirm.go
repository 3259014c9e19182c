package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/fleet"
)

// confirmRemoval confirms the fleet file that removes many replicas, and is held back for it. path names it, or is "".
func (s *settings) confirmRemoval(cmd *cobra.Command, f *controlFlags, path string) error {
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
			if digest, err := removalDigest(path); err != nil || digest != "" && digest != held.Object {
				return cmp.Or(err, fmt.Errorf("%s is not the fleet file that control planes hold back, which removes %s: name that one",
					path, cmp.Or(held.Removes, "replicas")))
			}
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

// removalDigest returns the digest of the replicas of a fleet file as control planes state it; "" without a file, or
// where it has host names, which control planes look up.
func removalDigest(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	file, err := wiring.Load(path)
	if err != nil {
		return "", err
	}
	for _, r := range file.Fleet.Replicas {
		if _, err := netip.ParseAddrPort(r.Address); err != nil {
			return "", nil
		}
	}
	return fleet.DigestReplicas(file.Registry()), nil
}
