package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/xds/control"
)

// Bounds of a request to a control plane.
const (
	requestTimeout = 15 * time.Second // the control plane writes a change within 10 s
	pushTimeout    = 30 * time.Second // the control plane checks a module within 25 s
	maxResponse    = 64 << 20         // bytes; 10,000 replicas take about 4 MiB
	maxErrorBody   = 4 << 10          // bytes of an error response
	// minEvery is the shortest interval of --watch.
	minEvery = 100 * time.Millisecond
)

// controlFlags are the flags of the commands that send requests to a control
// plane.
type controlFlags struct {
	file    fleetFile
	control string
}

func (f *controlFlags) flags(c *cobra.Command) {
	f.file.flag(c, "fleet file, to find the control plane by its control.admin")
	c.Flags().StringVar(&f.control, "control", "http://"+upAdmin, "base URL of the control plane's admin server")
}

// baseURL returns the URL of the control plane that the flags name.
func (f *controlFlags) baseURL(cmd *cobra.Command) (*url.URL, error) {
	control := f.control
	if f.file.path != "" && !cmd.Flags().Changed("control") {
		fleet, err := f.file.load(cmd)
		if err != nil {
			return nil, err
		}
		control = "http://" + fleet.Fleet.Control.Admin
	}
	u, err := url.Parse(control)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, usageErrorf(cmd, "--control %q is not a base URL such as http://%s", control, upAdmin)
	}
	return u, nil
}

// watchFlags make a command repeat its output.
type watchFlags struct {
	watch bool
	every time.Duration
}

func (f *watchFlags) flags(c *cobra.Command) {
	c.Flags().BoolVar(&f.watch, "watch", false, "repeat until interrupted")
	c.Flags().DurationVar(&f.every, "every", time.Second, "interval of --watch")
}

// clearScreen moves the cursor to the top left and clears the screen.
const clearScreen = "\x1b[H\x1b[2J"

// repeat calls show once, or periodically if the flags say so. While it repeats, it prints an error
// of the control plane and continues: the control plane may soon be reachable again.
func (s *settings) repeat(cmd *cobra.Command, f watchFlags, show func(context.Context) error) error {
	ctx := cmd.Context()
	if f.every < minEvery {
		return usageErrorf(cmd, "--every %v: at least %v", f.every, minEvery)
	}
	if !f.watch {
		return show(ctx)
	}
	tick := time.NewTicker(f.every)
	defer tick.Stop()
	for {
		if !s.json {
			fmt.Fprint(s.stdout, clearScreen)
		}
		if err := show(ctx); err != nil && ctx.Err() == nil {
			fmt.Fprintln(s.stderr, "cascade:", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// request gets the JSON document at a path of a control plane's admin server
// or, with POST, makes a change. If the control plane rejects it, the error is
// the control plane's own text.
func request(ctx context.Context, base *url.URL, method, path string, query url.Values) ([]byte, error) {
	return requestWithBody(ctx, base, method, path, query, nil)
}

// requestWithBody is request with a JSON body, which may be nil. It allows the control plane more
// time to process the request.
func requestWithBody(ctx context.Context, base *url.URL, method, path string, query url.Values, document io.Reader) ([]byte, error) {
	askTimeout := requestTimeout
	if document != nil {
		askTimeout = pushTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	u := base.JoinPath(path)
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, u.String(), document)
	if err != nil {
		return nil, err
	}
	req.Close = true
	if document != nil {
		req.Header.Set("content-type", "application/json")
	}
	req.Header.Set(control.AdminHeader, "1")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		var inner *url.Error
		if errors.As(err, &inner) {
			err = inner.Err
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return nil, fmt.Errorf("the control plane at %s did not answer within %v; the change may have been made", base, askTimeout)
		}
		if isConnectionCut(err) {
			return nil, fmt.Errorf("the control plane at %s closed the connection: %w; see its log for the reason; the change may have been made", base, err)
		}
		return nil, fmt.Errorf("no control plane at %s: %w; start one (\"cascade up\"), or name it with --control or -c", base, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", u, err)
	case resp.StatusCode != http.StatusOK || !json.Valid(body):
		return nil, responseError(u, resp.Status, body)
	case len(body) > maxResponse:
		return nil, fmt.Errorf("%s: response larger than %d MiB", u, maxResponse>>20)
	}
	return body, nil
}

// isConnectionCut reports whether an established connection was reset, or
// closed before the response.
func isConnectionCut(err error) bool {
	var of *net.OpError
	return errors.As(err, &of) && of.Op != "dial" || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// responseError returns the error of an unexpected response.
func responseError(u *url.URL, status string, body []byte) error {
	var problem struct {
		Error string `json:"error"`
	}
	if len(body) <= maxErrorBody && json.Unmarshal(body, &problem) == nil && problem.Error != "" {
		return errors.New(problem.Error)
	}
	return fmt.Errorf("%s answered %s, which is not a control plane's response; set --control to the address of control.admin", u, status)
}

// printResponse prints the document of a control plane: unchanged with --json,
// else as text.
func printResponse[T any](s *settings, base *url.URL, body []byte, text func(io.Writer, T) error) error {
	if s.json {
		_, err := s.stdout.Write(body)
		return err
	}
	v, err := decode[T](base, body)
	if err != nil {
		return err
	}
	return text(s.stdout, v)
}

// decode decodes the document of a control plane.
func decode[T any](base *url.URL, body []byte) (v T, err error) {
	if err := json.Unmarshal(body, &v); err != nil {
		return v, fmt.Errorf("%s is not a control plane: %w", base, err)
	}
	return v, nil
}
