package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/internal/atomicfile"
	"github.com/cascadeinfer/cascade/xds/control"
)

// Bounds of a request to a control plane.
const (
	requestTimeout = 15 * time.Second // the control plane writes a change within 10 s
	pushTimeout    = 30 * time.Second // the control plane checks a module within 25 s
	maxResponse    = 64 << 20         // bytes; 10,000 replicas take about 4 MiB
	maxErrorBody   = 4 << 10          // bytes of an error response
	// answerTimeout is how long one of several control planes may take to answer.
	answerTimeout = time.Second
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
	c.Flags().StringVar(&f.control, "control", "http://"+upAdmin,
		"base URL of the control plane's admin server, or a comma-separated list; the first that answers is asked")
}

// baseURL returns the URL of the control plane to ask: the first that answers, of those that the
// flags name or that share the state of the file. Any of them answers for the fleet.
func (f *controlFlags) baseURL(cmd *cobra.Command) (*url.URL, error) {
	candidates := strings.Split(f.control, ",")
	if f.file.path != "" && !cmd.Flags().Changed("control") {
		fleet, err := f.file.load(cmd)
		if err != nil {
			return nil, fmt.Errorf("%w\nTo ask a running control plane without the file, give its control.admin URL with --control", err)
		}
		candidates = []string{"http://" + fleet.Fleet.Control.Admin}
		if len(fleet.Fleet.Control.Peers) > 0 {
			ctx, cancel := context.WithTimeout(cmd.Context(), answerTimeout)
			defer cancel()
			for _, admin := range control.PlaneAdmins(fleet.PlaneNotes(ctx)) {
				candidates = append(candidates, "http://"+admin)
			}
		}
	}
	var urls []*url.URL
	for _, text := range candidates {
		u, err := parseBaseURL(cmd, "--control", strings.TrimSpace(text), upAdmin)
		if err != nil {
			return nil, err
		}
		urls = append(urls, u)
	}
	if len(urls) > 1 {
		for _, u := range urls {
			if answers(cmd.Context(), u) {
				return u, nil
			}
		}
	}
	return urls[0], nil
}

// answers reports whether the admin server of a control plane answers.
func answers(ctx context.Context, base *url.URL) bool {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	_, _, err := controlRequest{base: base, path: "healthz"}.exchange(ctx)
	return err == nil
}

// parseBaseURL parses the base URL of a server; example is the usual address of such a server.
func parseBaseURL(cmd *cobra.Command, name, text, example string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, cli.Usagef(cmd, "%s %q is not a base URL such as http://%s", name, text, example)
	}
	return u, nil
}

// parseEndpoint parses the URL of an OpenAI endpoint and returns it without the /v1 that clients of
// such endpoints write at its end.
func parseEndpoint(cmd *cobra.Command, name, text, example string) (string, error) {
	u, err := parseBaseURL(cmd, name, text, example)
	if err != nil {
		return "", err
	}
	u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/v1")
	return u.String(), nil
}

// operatorFlag adds --by.
func operatorFlag(c *cobra.Command, by *string) {
	host, _ := os.Hostname()
	user := cmp.Or(os.Getenv("USER"), os.Getenv("LOGNAME"), fmt.Sprint("uid ", os.Getuid())) + "@" + host
	c.Flags().StringVar(by, "by", user, "name of the operator, for the history and the status")
	c.Flags().Lookup("by").DefValue = "<user>@<host name>"
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

// controlPlane is the control plane that a command asks again and again. Once it does not answer, the next request looks
// for another one of those that the flags name. It is not safe for concurrent use.
type controlPlane struct {
	cmd   *cobra.Command
	flags *controlFlags
	base  *url.URL // nil: the last one did not answer
}

// connect returns the control plane that answers. An error is a wrong flag or file, which no waiting mends.
func (f *controlFlags) connect(cmd *cobra.Command) (*controlPlane, error) {
	base, err := f.baseURL(cmd)
	return &controlPlane{cmd, f, base}, err
}

// ask calls request with the URL of the control plane.
func (p *controlPlane) ask(request func(base *url.URL) error) (err error) {
	if p.base == nil {
		if p.base, err = p.flags.baseURL(p.cmd); err != nil {
			return err
		}
	}
	if err = request(p.base); err != nil {
		p.base = nil
	}
	return err
}

// repeat calls output once, or periodically if the flags say so. While it repeats, it prints an
// error of the control plane and continues: one may soon be reachable again.
func (s *settings) repeat(
	cmd *cobra.Command, c *controlFlags, f watchFlags, output func(context.Context, *url.URL) error,
) error {
	ctx := cmd.Context()
	if f.every < minEvery {
		return cli.Usagef(cmd, "--every %v: at least %v", f.every, minEvery)
	}
	p, err := c.connect(cmd)
	if err != nil {
		return err
	}
	if !f.watch {
		return output(ctx, p.base)
	}
	tick := time.NewTicker(f.every)
	defer tick.Stop()
	for {
		if !s.JSON && isTerminal(s.Stdout) {
			fmt.Fprint(s.Stdout, clearScreen)
		}
		err := p.ask(func(base *url.URL) error { return output(ctx, base) })
		if err != nil && ctx.Err() == nil {
			fmt.Fprintln(s.Stderr, "cascade:", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// controlRequest is a request to the admin server of a control plane.
type controlRequest struct {
	base     *url.URL
	method   string // "" is GET
	path     string
	query    url.Values
	document []byte // JSON, or nil; the control plane then takes more time
}

// send sends the request and returns the JSON document of the response. If the control plane
// rejects it, the error is the control plane's own text.
func (r controlRequest) send(ctx context.Context) ([]byte, error) {
	timeout := requestTimeout
	if r.document != nil {
		timeout = pushTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, body, err := r.exchange(ctx)
	var failed *url.Error
	switch {
	case err == nil && !json.Valid(body):
		return nil, r.unexpected("200 OK", body)
	case !errors.As(err, &failed):
		return body, err
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("the control plane at %s did not answer within %v; the change may have been made", r.base, timeout)
	case isConnectionCut(failed.Err):
		return nil, fmt.Errorf("the control plane at %s closed the connection: %w; see its log for the reason; the change may have been made", r.base, failed.Err)
	}
	if strings.Contains(failed.Err.Error(), "malformed HTTP response") { // net/http has no type for it
		return nil, fmt.Errorf("%s does not speak HTTP/1: set --control to the address of control.admin; control.listen is for proxies and migrators", r.base)
	}
	return nil, noControlPlane(r.base.String(), failed.Err)
}

// noControlPlane returns the error of an address at which no control plane answers. It does not name
// "cascade up", which would start emulated engines at the addresses of a production fleet.
func noControlPlane(base string, cause error) error {
	return fmt.Errorf("no control plane at %s: %w; requests are still served, by the last plan; start one with \"cascade control -c FILE\", or name it with --control or -c", base, cause)
}

// exchange sends the request and returns the header and the body of a response with status 200.
// The error is a *url.Error if there was no response.
func (r controlRequest) exchange(ctx context.Context) (http.Header, []byte, error) {
	u := r.url()
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), bytes.NewReader(r.document))
	if err != nil {
		return nil, nil, err
	}
	req.Close = true
	if r.document != nil {
		req.Header.Set("content-type", "application/json")
	}
	req.Header.Set(control.AdminHeader, "1")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := atomicfile.ReadAll(resp.Body, maxResponse)
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("%s: response: %w", u, err)
	case resp.StatusCode != http.StatusOK:
		return nil, nil, r.unexpected(resp.Status, body)
	}
	return resp.Header, body, nil
}

func (r controlRequest) url() *url.URL {
	u := r.base.JoinPath(r.path)
	u.RawQuery = r.query.Encode()
	return u
}

// isConnectionCut reports whether an established connection was reset, or
// closed before the response.
func isConnectionCut(err error) bool {
	var of *net.OpError
	return errors.As(err, &of) && of.Op != "dial" || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// unexpected returns the error of an unexpected response.
func (r controlRequest) unexpected(status string, body []byte) error {
	var problem struct {
		Error string `json:"error"`
	}
	if len(body) <= maxErrorBody && json.Unmarshal(body, &problem) == nil && problem.Error != "" {
		return errors.New(problem.Error)
	}
	return fmt.Errorf("%s answered %s, which is not a control plane's response; set --control to the address of control.admin", r.url(), status)
}

// fetch sends a request and decodes the document of the response.
func fetch[T any](ctx context.Context, r controlRequest) (v T, err error) {
	body, err := r.send(ctx)
	if err == nil {
		v, err = decode[T](r.base, body)
	}
	return v, err
}

// show sends a request and prints the document of the response: unchanged with --json, else as text.
func show[T any](ctx context.Context, s *settings, r controlRequest, text func(io.Writer, T) error) error {
	_, err := showDocument(ctx, s, r, text)
	return err
}

// showDocument is show, and returns the document.
func showDocument[T any](ctx context.Context, s *settings, r controlRequest, text func(io.Writer, T) error) (v T, err error) {
	body, err := r.send(ctx)
	if err != nil {
		return v, err
	}
	if s.JSON {
		if _, err := s.Stdout.Write(body); err != nil {
			return v, err
		}
		text = func(io.Writer, T) error { return nil }
	}
	if v, err = decode[T](r.base, body); err != nil {
		return v, err
	}
	return v, text(s.Stdout, v)
}

// decode decodes the document of a control plane.
func decode[T any](base *url.URL, body []byte) (v T, err error) {
	if err := json.Unmarshal(body, &v); err != nil {
		return v, fmt.Errorf("%s is not a control plane: %w", base, err)
	}
	return v, nil
}
