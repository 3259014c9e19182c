package rollout

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/cascadeinfer/cascade/xds/resources"
)

var update = flag.Bool("update", false, "write testdata instead of comparing with it")

// newLabelledTable returns a table for a label such as "A1": the letters stand for
// its routes, the digits for its endpoints.
func newLabelledTable(t *testing.T, label string) *Table {
	t.Helper()
	r, err := resources.Encode(resources.RouteType, resources.RouteName, &routev3.RouteConfiguration{
		Name: strings.TrimRight(label, "0123456789"),
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := resources.NewSet(r)
	if err != nil {
		t.Fatal(err)
	}
	return &Table{Set: s}
}

// TestPhaseMachine runs testdata/phase.txt: a line is a command, a line that begins
// with ">" is the state after it, and "reset" starts a new machine.
func TestPhaseMachine(t *testing.T) {
	runScenario(t, "phase.txt", func() func(command, arg string) string {
		m, names := new(phaseMachine), make(map[*Table]string)
		return func(command, arg string) string {
			table := newLabelledTable(t, arg)
			names[table] = arg
			switch command {
			case "target":
				m.setTarget(table)
			case "revert":
				m.revertTo(table)
			case "advance":
				m.advance()
			case "finish":
				m.finish()
			case "abort":
				m.abort()
			default:
				t.Fatalf("unknown command %q", command)
			}
			if m.isEmpty() {
				return "> nothing\n"
			}
			l := m.layers()
			out := fmt.Sprintf("> %s: routes %s, endpoints %s", m.phase, names[l.routes], names[l.newest])
			for _, l := range l.live {
				out += " + " + names[l]
			}
			return out + "\n"
		}
	})
}

// runScenario runs the commands of a file and compares their outputs with the
// file. begin returns the function that runs a command, after every "reset"
// another one.
func runScenario(t *testing.T, name string, begin func() func(command, arg string) string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	script, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	step := begin()
	var out bytes.Buffer
	for line := range strings.Lines(string(script)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, ">") {
			continue
		}
		fmt.Fprintln(&out, line)
		command, arg, _ := strings.Cut(line, " ")
		switch command {
		case "", "#":
		case "reset":
			step = begin()
		default:
			out.WriteString(step(command, arg))
		}
	}
	if *update {
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !bytes.Equal(script, out.Bytes()) {
		t.Errorf("%s differs; run with -update and read the diff:\n%s", file, out.Bytes())
	}
}
