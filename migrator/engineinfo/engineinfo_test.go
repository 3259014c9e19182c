package engineinfo_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/policies"
)

// TestScenarios runs testdata/*.txt (-rewrite rewrites the expected output). The commands:
//
//	engine models=a:4096,b:0 kv=1000 block=16
//	check model=a context=4096      is the engine the one of the fleet file?
//	capacity stated=900 assumed=0   which size of the KV cache counts?
//	read at=3s took=5ms [failed]    records a read of the metrics
//	due at=4s
func TestScenarios(t *testing.T) {
	testkit.TestScenarios(t, "testdata", func(*testing.T) testkit.Player {
		var info engineinfo.Info
		var pace engineinfo.Pace
		return func(words []string) ([]string, error) {
			arg := func(name string) string {
				for _, w := range words[1:] {
					if v, ok := strings.CutPrefix(w, name+"="); ok {
						return v
					}
				}
				return ""
			}
			number := func(name string) (n policies.Tokens) { fmt.Sscan(arg(name), &n); return n }
			duration := func(name string) time.Duration { d, _ := time.ParseDuration(arg(name)); return d }
			switch words[0] {
			case "engine":
				info = engineinfo.Info{KVTokens: number("kv"), BlockTokens: number("block")}
				for _, m := range strings.FieldsFunc(arg("models"), func(r rune) bool { return r == ',' }) {
					name, context, _ := strings.Cut(m, ":")
					listed := engineinfo.Model{Name: name}
					fmt.Sscan(context, &listed.Context)
					info.Models = append(info.Models, listed)
				}
				return nil, nil
			case "check":
				if err := info.Check(arg("model"), number("context")); err != nil {
					return []string{err.Error()}, nil
				}
				return []string{"ready"}, nil
			case "capacity":
				out := []string{fmt.Sprint(int64(info.Capacity(number("stated"), number("assumed"))))}
				if warning := info.CheckCapacity(number("stated")); warning != "" {
					out = append(out, "warning: "+warning)
				}
				return out, nil
			case "read":
				var err error
				if words[len(words)-1] == "failed" {
					err = errors.New("failed")
				}
				pace.Done(duration("at"), duration("took"), err)
				return nil, nil
			case "due":
				return []string{fmt.Sprint(pace.Due(duration("at")))}, nil
			}
			return nil, fmt.Errorf("no command %q", words[0])
		}
	})
}

// TestCheckHandoff checks which engines hand KV over to each other: only those that are known to
// differ do not.
func TestCheckHandoff(t *testing.T) {
	nixl := engineinfo.KVConnector{Presence: engineinfo.Present, Name: "nixl", Version: "0.32.0", Layout: "block_size=16"}
	with := func(change func(*engineinfo.KVConnector)) engineinfo.KVConnector {
		c := nixl
		change(&c)
		return c
	}
	for _, test := range []struct {
		name, want string
		to         engineinfo.KVConnector
	}{
		{"the same", "", nixl},
		{"unknown", "", engineinfo.KVConnector{}},
		{"unknown presence", "", with(func(c *engineinfo.KVConnector) { c.Presence = engineinfo.Unknown })},
		{"none", engineinfo.ErrNoConnector.Error(), engineinfo.KVConnector{Presence: engineinfo.Absent}},
		{"other connector", `different KV connectors: "nixl"`, with(func(c *engineinfo.KVConnector) { c.Name = "CascadeConnector" })},
		{"other version", "different engine versions", with(func(c *engineinfo.KVConnector) { c.Version = "0.33.0" })},
		{"other layout", "different KV layouts", with(func(c *engineinfo.KVConnector) { c.Layout = "block_size=32" })},
	} {
		for _, pair := range [][2]engineinfo.KVConnector{{nixl, test.to}, {test.to, nixl}} {
			if err := engineinfo.CheckHandoff(pair[0], pair[1]); (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), strings.TrimSuffix(test.want, `: "nixl"`)) {
				t.Errorf("%s: %v", test.name, err)
			}
		}
	}
}
