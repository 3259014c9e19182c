package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/fileio"
	"github.com/cascadeinfer/cascade/cmd/internal/policyhost"
	"github.com/cascadeinfer/cascade/wasm/calllog"
)

// callRecords summarises the calls that a host has recorded.
type callRecords struct {
	Slot    string         `json:"slot"`
	Host    string         `json:"host"`
	File    string         `json:"file"`
	Frames  int            `json:"frames"`
	Modules map[string]int `json:"modules"` // calls by the sha256 of the module that was called; "" is the built-in policy
	Faults  int            `json:"faults"`  // answered by the built-in policy instead
	LeftOut int            `json:"left_out,omitempty"`
}

func newPolicyRecords(s *settings) *cobra.Command {
	f, replica, out := &controlFlags{}, "", ""
	c := &cobra.Command{
		Use:   "records SLOT",
		Short: "Fetch the calls that a running host has recorded in a slot",
		Long: `Records writes the last calls that the policy in force of a slot answered on one host,
built-in policies included: the arguments, the decision, the fuel, and the
module's digest. "cascade policy diff" and "replay" then show where another policy would
have decided otherwise, and "test" takes the file as testdata. A host keeps the
last 64 calls of a slot, of a module's 64 for each call that can be made at a time.

Slots partition and guard are the control plane's. The others are the migrators': --replica
selects one of the fleet file, on its "admin" address; "cascade up" is all of them, and is
read like the control plane. Calls contain names of requests: hosts serve them on their own
host only.`,
		Example: `  cascade policy records refine
  cascade policy diff refine.jsonl my-refiner.wasm     # beside what was decided
  cascade policy records bid-select -c fleet.yaml --replica r0 -o bids.jsonl`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := requireSlots(cmd, args); err != nil {
				return err
			}
			if out == "-" && s.json {
				return usageErrorf(cmd, "-o - writes the calls to stdout, and --json a summary: name a file for one of them")
			}
			base, err := recordsBase(cmd, f, replica)
			if err != nil {
				return err
			}
			r, text, err := fetchRecords(cmd.Context(), base, args[0])
			if err != nil {
				return err
			}
			if out == "-" {
				_, err = s.stdout.Write(text)
				return err
			}
			if r.File = out; out == "" {
				r.File = r.Slot + ".jsonl"
			}
			if err := fileio.WriteAtomic(r.File, text, 0o600); err != nil {
				return err
			}
			if s.json {
				return s.print(r)
			}
			return s.printRecords(r)
		},
	}
	f.flags(c)
	f.file.replicaFlag(c, &replica)
	c.Flags().Lookup("replica").Usage = "ask the migrator of this replica, on its admin address in the fleet file"
	c.Flags().StringVarP(&out, "output", "o", "", "file to write; empty: SLOT.jsonl; -: stdout")
	return c
}

// recordsBase returns the base URL of the admin server that serves the records.
func recordsBase(cmd *cobra.Command, f *controlFlags, replica string) (*url.URL, error) {
	if replica == "" {
		return f.baseURL(cmd)
	}
	if cmd.Flags().Changed("control") {
		return nil, usageErrorf(cmd, "--replica selects a migrator, --control a control plane: set one of them")
	}
	fleet, err := f.file.load(cmd)
	if err != nil {
		return nil, err
	}
	r, err := fleet.Replica(replica)
	if err != nil {
		return nil, usageErrorf(cmd, "--replica: %w", err)
	}
	if r.Admin == "" {
		return nil, fmt.Errorf("%s: replica %s has no \"admin\" address; set one in the fleet file", f.file.path, replica)
	}
	return &url.URL{Scheme: "http", Host: r.Admin}, nil
}

// fetchRecords fetches the calls of a slot, and checks them.
func fetchRecords(ctx context.Context, base *url.URL, slot string) (r callRecords, text []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	request := controlRequest{base: base, path: "policies/records", query: url.Values{"slot": {slot}}}
	header, text, err := request.exchange(ctx)
	var failed *url.Error
	if errors.As(err, &failed) {
		err = fmt.Errorf("no response from %s: %w; name the control plane with --control or -c, or a migrator with --replica (without --replica for \"cascade up\")", base, failed.Err)
	}
	if err != nil {
		return r, nil, err
	}
	frames, err := calllog.Read(bytes.NewReader(text))
	if err != nil {
		return r, nil, fmt.Errorf("%s: %w", request.url(), err)
	}
	r = callRecords{Slot: slot, Host: header.Get(policyhost.HostHeader), Frames: len(frames), Modules: map[string]int{}}
	if left := header.Get(policyhost.LeftOutHeader); left != "" {
		if _, err := fmt.Sscan(left, &r.LeftOut); err != nil {
			return r, nil, fmt.Errorf("%s: header %s: %w", request.url(), policyhost.LeftOutHeader, err)
		}
	}
	for _, f := range frames {
		who := ""
		if a := f.Answer; a != nil {
			if a.Module != [len(a.Module)]byte{} {
				who = hex.EncodeToString(a.Module[:])
			}
			if a.Cause != 0 {
				r.Faults++
			}
		}
		r.Modules[who]++
	}
	return r, text, nil
}

// printRecords prints which files were written, and the next step.
func (s *settings) printRecords(r callRecords) error {
	var by []string
	for _, who := range slices.Sorted(maps.Keys(r.Modules)) {
		name := "the built-in policy"
		if who != "" {
			name = "module " + who[:shownDigest]
		}
		by = append(by, fmt.Sprintf("%d by %s", r.Modules[who], name))
	}
	if r.Frames == 0 {
		by = []string{"no recent calls"}
	}
	fmt.Fprintf(s.stdout, "%s: %s of %s in %s: %s\n", r.File, plural(r.Frames, "call"), r.Slot, r.Host, strings.Join(by, ", "))
	if r.Faults > 0 {
		fmt.Fprintf(s.stdout, "%d of them failed, and the built-in policy answered\n", r.Faults)
	}
	if r.LeftOut > 0 {
		fmt.Fprintf(s.stdout, "%d more did not fit into the response\n", r.LeftOut)
	}
	if r.Frames > 0 {
		fmt.Fprintf(s.stdout, "next: cascade policy diff %s FILE|DIR\n", r.File)
	}
	return nil
}
