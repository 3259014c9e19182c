package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// TestAdminScenarios runs testdata/admin/*.txt (see testkit.TestScenarios): commands
// and their responses, most of them refusals.
//
//	control [policies] [hosts=NAME]   starts a control plane of two replicas and waits for
//	                                  their reports. With policies it admits modules
//	GET|POST PATH [OPTION…]           sends a request, a POST with the header of commands,
//	                                  and prints the status and the error, or "ok"
//
// Options: host=, type=, body=; header=none; module=TEXT with signature=TEXT or
// generation=N, as a push. LONG in a path is an id of 10,000 bytes. show=WORD prints the lines of the response that contain it.
// The module and the signature "large" exceed their limits, the body "large" that of a
// push.
func TestAdminScenarios(t *testing.T) {
	testkit.TestScenarios(t, "testdata/admin", func(t *testing.T) testkit.Player {
		var c *runningControl
		return func(words []string) ([]string, error) {
			options := make(map[string]string)
			for _, word := range words[1:] {
				name, value, _ := strings.Cut(word, "=")
				options[name] = value
			}
			if words[0] == "control" {
				c = startAdminControl(t, options)
				return nil, nil
			}
			path := strings.ReplaceAll(words[1], "LONG", strings.Repeat("r", 10_000))
			return sendAdminRequest(t, c, words[0], path, options)
		}
	})
}

func startAdminControl(t *testing.T, options map[string]string) *runningControl {
	t.Helper()
	f := newFakeFleet(t, 2)
	cfg := Config{Rules: fastRules(), Replicas: f.list}
	if _, ok := options["policies"]; ok {
		cfg.Admitter = &fakeAdmitter{deny: func(p Push) error {
			if p.Goal == lifecycle.ToActive && p.Current.Candidate == nil {
				return errors.New("the site's rules: shadow comes first")
			}
			return nil
		}}
	}
	if host := options["hosts"]; host != "" {
		cfg.AdminHosts = []string{host}
	}
	c := startControl(t, cfg)
	f.startReports(t, c)
	waitFor(t, c, "all reports", func(s Status) bool {
		all := s.Models[0].Stages[0].Replicas
		return len(all) == 2 && all[0].Connected && all[1].Connected
	})
	return c
}

func sendAdminRequest(t *testing.T, c *runningControl, method, path string, options map[string]string) ([]string, error) {
	edit := func(r *http.Request) {
		r.Method = method
		if method == http.MethodGet || options["header"] == "none" {
			r.Header.Del(AdminHeader)
		}
		if host, ok := options["host"]; ok {
			r.Host = host
		}
		if kind := options["type"]; kind != "" {
			r.Header.Set("content-type", kind)
		}
		if text := options["body"]; text != "" {
			if text == "large" {
				text = `{"module":"` + strings.Repeat("AAAA", maxPush/4) + `"}`
			}
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
		}
	}
	var code int
	var body string
	if module, ok := options["module"]; ok {
		signature := options["signature"]
		if n := options["generation"]; n != "" {
			signature = "generation " + n
		}
		if module == "large" {
			module = strings.Repeat("x", policyslots.MaxModule+1)
		}
		if signature == "large" {
			signature = strings.Repeat("x", policyslots.MaxSignature+1)
		}
		u, err := url.Parse(path)
		if err != nil {
			return nil, err
		}
		code, body = push(t, c, u.RawQuery, []byte(module), signature)
	} else {
		code, body = post(t, c, path, edit)
	}
	var refusal errorBody
	text := "ok"
	if code != http.StatusOK {
		if text = strings.TrimSpace(body); json.Unmarshal([]byte(body), &refusal) == nil {
			text = refusal.Error
		}
	}
	out := []string{fmt.Sprintf("%d %.200s", code, text)}
	if word := options["show"]; word != "" {
		for line := range strings.Lines(body) {
			if strings.Contains(line, word) {
				out = append(out, strings.Trim(line, " ,\n"))
			}
		}
	}
	return out, nil
}
