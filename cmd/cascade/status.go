package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/xds/control"
)

// Bounds of one look at a control plane.
const (
	statusTimeout = 5 * time.Second
	maxStatus     = 64 << 20 // bytes; 10,000 replicas take about 4 MiB
	// statusEvery is the smallest time between two looks.
	statusEvery = 100 * time.Millisecond
)

// statusFlags are the flags of "cascade status".
type statusFlags struct {
	file    fleetFile
	control string
	watch   bool
	every   time.Duration
}

// newStatus is "cascade status": what a running control plane knows.
func newStatus(s *settings) *cobra.Command {
	f := &statusFlags{}
	c := &cobra.Command{
		Use:   "status",
		Short: "Show a running fleet: stages, ranges, replicas, load, epochs, ACKs",
		Long: `Status asks the control plane for its state and shows, for every model, the plan in
force and why, each stage's range and replicas with their load, the proxies with the
epoch that each has acknowledged and what it refused, and the latest plans.

Columns: weight is the EDS weight (100 is neutral); held and promised are KV tokens
in use and accepted but not begun; iteration is the mean time between a request's
tokens; report is the age of the last load report.

--json prints the control plane's answer as it is.`,
		Example: `  cascade status
  cascade status --watch
  cascade status --control http://127.0.0.1:18001 --json | jq '.models[].stages'`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return s.status(cmd, f) },
	}
	f.file.flag(c, "fleet file, to find the control plane by its control.admin")
	c.Flags().StringVar(&f.control, "control", "http://"+upAdmin, "base URL of the control plane's admin server")
	c.Flags().BoolVar(&f.watch, "watch", false, "show it again and again, until interrupted")
	c.Flags().DurationVar(&f.every, "every", time.Second, "time between two looks of --watch")
	return c
}

func (s *settings) status(cmd *cobra.Command, f *statusFlags) error {
	if f.file.path != "" && !cmd.Flags().Changed("control") {
		fleet, err := f.file.load(cmd)
		if err != nil {
			return err
		}
		f.control = "http://" + fleet.Fleet.Control.Admin
	}
	u, err := url.Parse(f.control)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return misused(cmd, "--control %q is not a base URL such as http://%s", f.control, upAdmin)
	}
	if f.every < statusEvery {
		return misused(cmd, "--every %v: at least %v", f.every, statusEvery)
	}
	address := u.JoinPath("status").String()
	if !f.watch {
		return s.showStatus(cmd.Context(), address)
	}
	return s.watchStatus(cmd.Context(), address, f.every)
}

// clearScreen moves the cursor home and clears what is below it.
const clearScreen = "\x1b[H\x1b[2J"

// watchStatus shows the state again and again. A control plane that does not
// answer is shown as that: it may be back in a moment.
func (s *settings) watchStatus(ctx context.Context, address string, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if !s.json {
			fmt.Fprint(s.stdout, clearScreen)
		}
		if err := s.showStatus(ctx, address); err != nil && ctx.Err() == nil {
			fmt.Fprintln(s.stderr, "cascade:", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// showStatus asks once and shows the answer.
func (s *settings) showStatus(ctx context.Context, address string) error {
	body, err := fetchStatus(ctx, address)
	if err != nil {
		return err
	}
	if s.json {
		_, err := s.stdout.Write(body)
		return err
	}
	var st control.Status
	if err := json.Unmarshal(body, &st); err != nil {
		return fmt.Errorf("%s is no control plane: %w", address, err)
	}
	return writeStatus(s.stdout, st)
}

// fetchStatus gets the document that a control plane answers with.
func fetchStatus(ctx context.Context, address string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		return nil, fmt.Errorf("no control plane at %s: %w; start one (\"cascade up\"), or name it with --control or -c", strings.TrimSuffix(address, "/status"), err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxStatus+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", address, err)
	case resp.StatusCode != http.StatusOK || !json.Valid(body):
		return nil, fmt.Errorf("%s answers %s, which is no control plane's status; --control takes the address of control.admin", address, resp.Status)
	case len(body) > maxStatus:
		return nil, fmt.Errorf("%s answers more than %d MiB", address, maxStatus>>20)
	}
	return body, nil
}
