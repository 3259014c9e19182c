package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// patience is the timeout of all waits.
const patience = 2 * time.Minute

// tick is the time between two checks of another process.
const tick = 20 * time.Millisecond

// TestScripts runs testdata/script. Besides testscript's own commands there
// are:
//
//	ports NAME...               set variables to free addresses of loopback
//	expand FILE...              replace $NAME in files by the environment
//	[!] await URL [REGEXP]      wait until GET answers 200 ("!": another status) and a body that matches
//	[!] get URL                 GET to stdout; "!": the answer is not 200
//	[!] post URL FILE           the same with a POST of JSON
//	exitcode CODE ARGS...       run cascade and compare its exit code
//	signal NAME WORDS           signal the background process with these arguments
//	last WORDS                  wait until all background processes with these arguments but one have ended
//	hammer URL FILE             POST JSON without a pause, from several clients, until rest
//	rest                        end hammer; every response must have been complete, with status 200
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Values[loadClientKey{}] = &loadClient{}
			bids := hosttest.Policy(hosttest.LeastLoad()) // decides as the built-in bid-least-load
			stays := hosttest.Result(uint32(abi.None), 0)
			for name, m := range map[string]hosttest.Module{
				"bids.wasm": bids, "other.wasm": bids,
				"stay.wasm": hosttest.Policy(hosttest.Function(abi.Place.Export(), nil, stays)),
				"trap.wasm": hosttest.Policy(hosttest.Function(abi.Place.Export(), nil, hosttest.OneIn(64, hosttest.Unreachable), stays)),
			} {
				if err := os.WriteFile(filepath.Join(e.WorkDir, name), m.Encode(), 0o666); err != nil {
					return err
				}
			}
			// The race detector makes every process linger for a second.
			e.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"ports": ports, "expand": expand, "await": await, "get": get, "post": post, "exitcode": exitcode, "signal": signalProcess,
			"hammer": startLoad, "rest": stopLoad, "last": last,
		},
	})
}

func ports(ts *testscript.TestScript, neg bool, names []string) {
	for i, address := range testkit.Addresses(ts, len(names)) {
		ts.Setenv(names[i], address)
	}
}

func expand(ts *testscript.TestScript, neg bool, files []string) {
	for _, f := range files {
		text := os.Expand(ts.ReadFile(f), ts.Getenv)
		ts.Check(os.WriteFile(ts.MkAbs(f), []byte(text), 0o600))
	}
}

// scripts is the client of all scripts. Every request has its own connection.
var scripts = &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}

// ask sends a request; the status is 0 if there is no response.
func ask(ctx context.Context, method, url string, body []byte) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("content-type", "application/json")
	resp, err := scripts.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(out), err
}

// awaitBody polls until the status is accepted and the body matches.
func awaitBody(url, pattern string, good func(status int) bool) (string, error) {
	re, err := regexp.Compile("(?s)" + pattern)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	every := time.NewTicker(tick)
	defer every.Stop()
	for {
		status, body, err := ask(ctx, http.MethodGet, url, nil)
		if err == nil && good(status) && re.MatchString(body) {
			return body, nil
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			return "", fmt.Errorf("%s did not match %q within %v: %d %s %v", url, pattern, patience, status, body, err)
		}
	}
}

func await(ts *testscript.TestScript, neg bool, args []string) {
	pattern := ""
	if len(args) > 1 {
		pattern = args[1]
	}
	_, err := awaitBody(args[0], pattern, func(status int) bool { return (status == http.StatusOK) != neg })
	ts.Check(err)
}

func get(ts *testscript.TestScript, neg bool, args []string) {
	sendRequest(ts, neg, http.MethodGet, args[0], nil)
}

func post(ts *testscript.TestScript, neg bool, args []string) {
	sendRequest(ts, neg, http.MethodPost, args[0], []byte(ts.ReadFile(args[1])))
}

func sendRequest(ts *testscript.TestScript, neg bool, method, url string, body []byte) {
	status, text, err := ask(context.Background(), method, url, body)
	ts.Check(err)
	fmt.Fprint(ts.Stdout(), text)
	if (status == http.StatusOK) == neg {
		ts.Fatalf("%s %s answers %d: %s", method, url, status, text)
	}
}

func exitcode(ts *testscript.TestScript, neg bool, args []string) {
	code := 0
	err := ts.Exec("cascade", args[1:]...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code, err = exit.ExitCode(), nil
	}
	ts.Check(err)
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("cascade %s ends with code %d, not %s", strings.Join(args[1:], " "), code, args[0])
	}
}

func signalProcess(ts *testscript.TestScript, neg bool, args []string) {
	sig, ok := map[string]syscall.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "KILL": syscall.SIGKILL}[args[0]]
	if !ok {
		ts.Fatalf("signal %s: use TERM, INT or KILL", args[0])
	}
	found := background(ts, args[1:])
	for _, p := range found {
		if err := p.Signal(sig); !errors.Is(err, os.ErrProcessDone) {
			ts.Check(err)
		}
	}
	if len(found) != 1 {
		ts.Fatalf("%d background processes match %q", len(found), args[1:])
	}
}

// background returns the background processes that have words among their arguments.
func background(ts *testscript.TestScript, words []string) (found []*os.Process) {
	want := strings.Join(words, " ")
	for _, c := range ts.BackgroundCmds() {
		if strings.Contains(strings.Join(c.Args[1:], " "), want) {
			found = append(found, c.Process)
		}
	}
	return found
}

func last(ts *testscript.TestScript, neg bool, words []string) {
	every := time.NewTicker(tick)
	defer every.Stop()
	for end := time.Now().Add(patience); ; <-every.C {
		live := 0
		for _, p := range background(ts, words) {
			if p.Signal(syscall.Signal(0)) == nil {
				live++
			}
		}
		if live == 1 {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%d background processes with %q are left", live, words)
		}
	}
}
