package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
	"github.com/cascadeinfer/cascade/xds/control"
)

// TestCommands runs testdata/commands: commands that start no daemon, inside the test and one
// script after the other. $CONTROL is the URL of a control plane that answers what the script says.
// Besides testscript's own commands there are
//
//	[!] run ARGS...                    run cascade; "!": its exit code is not 0
//	exitcode CODE ARGS...              run cascade and compare its exit code
//	answer [CODE] METHOD PATH FILE...  the control plane answers such requests with these files in
//	                                   turn, and with the last one from then on
//	asked N                            N requests have come since the script began
//
// bids.wasm decides as the built-in bid-least-load.
func TestCommands(t *testing.T) {
	testscript.RunT(serialT{t}, testscript.Params{
		Dir:                 "testdata/commands",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       *update,
		Setup: func(e *testscript.Env) error {
			c := &scriptedControl{answers: map[string][]answer{}}
			server := httptest.NewServer(c)
			e.Defer(server.Close)
			e.Values[controlKey{}] = c
			e.Setenv("CONTROL", server.URL)
			return os.WriteFile(filepath.Join(e.WorkDir, "bids.wasm"), hosttest.Policy(hosttest.LeastLoad()).Encode(), 0o666)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"run": func(ts *testscript.TestScript, neg bool, args []string) {
				if code := runHere(ts, args); (code != 0) != neg {
					ts.Fatalf("cascade %s ends with code %d", strings.Join(args, " "), code)
				}
			},
			"exitcode": func(ts *testscript.TestScript, _ bool, args []string) {
				if code := runHere(ts, args[1:]); strconv.Itoa(code) != args[0] {
					ts.Fatalf("cascade %s ends with code %d, not %s", strings.Join(args[1:], " "), code, args[0])
				}
			},
			"answer": addAnswers,
			"asked": func(ts *testscript.TestScript, _ bool, args []string) {
				if n := ts.Value(controlKey{}).(*scriptedControl).requests(); strconv.Itoa(n) != args[0] {
					ts.Fatalf("%d requests", n)
				}
			},
		},
	})
}

// serialT runs scripts one after the other: their commands share the working directory.
type serialT struct{ *testing.T }

func (serialT) Parallel()     {}
func (serialT) Verbose() bool { return testing.Verbose() }
func (t serialT) Run(name string, f func(testscript.T)) {
	t.T.Run(name, func(t *testing.T) { f(serialT{t}) })
}

// runHere runs a command line in the script's directory and returns its exit code.
func runHere(ts *testscript.TestScript, args []string) int {
	before, err := os.Getwd()
	ts.Check(err)
	ts.Check(os.Chdir(ts.MkAbs(".")))
	defer func() { ts.Check(os.Chdir(before)) }()
	return run(context.Background(), args, ts.Stdout(), ts.Stderr())
}

// controlKey finds the control plane of a script.
type controlKey struct{}

// answer is an answer of a scriptedControl.
type answer struct {
	code int
	body string
}

// scriptedControl is a control plane that answers what a script says.
type scriptedControl struct {
	mu      sync.Mutex
	answers map[string][]answer // by method and path with query
	asked   int
}

func (c *scriptedControl) requests() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked
}

// ServeHTTP implements http.Handler.
func (c *scriptedControl) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	key := r.Method + " " + r.URL.RequestURI()
	left := c.answers[key]
	if len(left) == 0 || r.Method == http.MethodPost && r.Header.Get(control.AdminHeader) == "" {
		http.Error(w, "unexpected: "+key, http.StatusNotFound)
		return
	}
	if len(left) > 1 {
		c.answers[key] = left[1:]
	}
	w.WriteHeader(left[0].code)
	fmt.Fprint(w, left[0].body)
}

func addAnswers(ts *testscript.TestScript, _ bool, args []string) {
	code, err := strconv.Atoi(args[0])
	if err == nil {
		args = args[1:]
	} else {
		code = http.StatusOK
	}
	c := ts.Value(controlKey{}).(*scriptedControl)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers[args[0]+" "+args[1]] = nil
	for _, file := range args[2:] {
		c.answers[args[0]+" "+args[1]] = append(c.answers[args[0]+" "+args[1]], answer{code, ts.ReadFile(file)})
	}
}
