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

// label makes a table out of a word such as "A1": the letters are its routes,
// the rest its endpoints.
func label(t *testing.T, word string) *Table {
	t.Helper()
	r, err := resources.Encode(resources.RouteType, resources.RouteName, &routev3.RouteConfiguration{
		Name: strings.TrimRight(word, "0123456789"),
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

// TestMachine plays testdata/phase.txt: a line is an event, a line that
// begins with ">" is what one group is shown after it, "reset" begins anew.
func TestMachine(t *testing.T) {
	play(t, "phase.txt", func() func(word, arg string) string {
		m, names := new(phaseMachine), make(map[*Table]string)
		return func(word, arg string) string {
			table := label(t, arg)
			names[table] = arg
			switch word {
			case "want":
				m.setTarget(table)
			case "back":
				m.revertTo(table)
			case "settled":
				m.advance()
			case "finish":
				m.finish()
			case "abort":
				m.abort()
			default:
				t.Fatalf("unknown event %q", word)
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

// play runs a scenario file against a player that is made anew at every
// "reset", and compares what it says with the file.
func play(t *testing.T, name string, begin func() func(word, arg string) string) {
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
		word, arg, _ := strings.Cut(line, " ")
		switch word {
		case "", "#":
		case "reset":
			step = begin()
		default:
			out.WriteString(step(word, arg))
		}
	}
	if *update {
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !bytes.Equal(script, out.Bytes()) {
		t.Errorf("%s differs from what happened:\n%s", file, out.Bytes())
	}
}
