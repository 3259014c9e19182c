package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/fleetview"
	"github.com/cascadeinfer/cascade/cmd/internal/policyhost"
	"github.com/cascadeinfer/cascade/internal/atomicfile"
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

// recordsFlags are the flags of "cascade policy status --records".
type recordsFlags struct {
	wanted       bool
	replica, out string
}

func (r *recordsFlags) flags(c *cobra.Command, file *fleetFile) {
	c.Flags().BoolVar(&r.wanted, "records", false, "write the calls that a host has recorded in the slot")
	file.replicaFlag(c, &r.replica)
	c.Flags().Lookup("replica").Usage = "with --records: ask the migrator of this replica, on its admin address in the fleet file"
	c.Flags().StringVarP(&r.out, "output", "o", "", "with --records: file to write; empty: SLOT.jsonl; -: stdout")
}

// saveRecords writes the calls that a host has recorded in a slot.
func (s *settings) saveRecords(cmd *cobra.Command, f *controlFlags, r *recordsFlags, args []string) error {
	if len(args) != 1 {
		return cli.Usagef(cmd, "--records is for one slot: name it")
	}
	if r.out == "-" && s.JSON {
		return cli.Usagef(cmd, "-o - writes the calls to stdout, and --json a summary: name a file for one of them")
	}
	base, err := recordsBase(cmd, f, r.replica)
	if err != nil {
		return err
	}
	calls, text, err := fetchRecords(cmd.Context(), base, args[0])
	if err != nil {
		return err
	}
	if r.out == "-" {
		_, err = s.Stdout.Write(text)
		return err
	}
	calls.File = cmp.Or(r.out, calls.Slot+".jsonl")
	if err := atomicfile.Write(calls.File, text, 0o600); err != nil {
		return err
	}
	if s.JSON {
		return s.Print(calls)
	}
	return s.printRecords(calls)
}

// recordsBase returns the base URL of the admin server that serves the records.
func recordsBase(cmd *cobra.Command, f *controlFlags, replica string) (*url.URL, error) {
	if replica == "" {
		return f.baseURL(cmd)
	}
	if cmd.Flags().Changed("control") {
		return nil, cli.Usagef(cmd, "--replica selects a migrator, --control a control plane: set one of them")
	}
	fleet, err := f.file.load(cmd)
	if err != nil {
		return nil, err
	}
	r, err := fleet.Replica(replica)
	if err != nil {
		return nil, cli.Usagef(cmd, "--replica: %w", err)
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
			name = "module " + who[:fleetview.ShownDigest]
		}
		by = append(by, fmt.Sprintf("%d by %s", r.Modules[who], name))
	}
	if r.Frames == 0 {
		by = []string{"no recent calls"}
	}
	fmt.Fprintf(s.Stdout, "%s: %s of %s in %s: %s\n", r.File, cli.Plural(r.Frames, "call"), r.Slot, r.Host, strings.Join(by, ", "))
	if r.Faults > 0 {
		fmt.Fprintf(s.Stdout, "%d of them failed, and the built-in policy answered\n", r.Faults)
	}
	if r.LeftOut > 0 {
		fmt.Fprintf(s.Stdout, "%d more did not fit into the response\n", r.LeftOut)
	}
	if r.Frames > 0 {
		fmt.Fprintf(s.Stdout, "next: cascade policy diff %s FILE|DIR\n", r.File)
	}
	return nil
}
