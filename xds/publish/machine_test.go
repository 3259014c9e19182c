package publish_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/cascadeinfer/cascade/xds/publish"
	"github.com/cascadeinfer/cascade/xds/resources"
)

var update = flag.Bool("update", false, "write testdata instead of comparing with it")

// label makes a table out of a word such as "A1": the letters are its routes,
// the rest its endpoints.
func label(t *testing.T, word string) *publish.Table {
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
	return &publish.Table{Set: s}
}

// TestMachine plays testdata/machine.txt: a line is an event, a line that
// begins with ">" is what it makes the machine show, "reset" begins anew.
func TestMachine(t *testing.T) {
	file := filepath.Join("testdata", "machine.txt")
	script, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	m := new(publish.Machine)
	names := make(map[*publish.Table]string)
	var out bytes.Buffer
	for line := range strings.Lines(string(script)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, ">") {
			continue
		}
		fmt.Fprintln(&out, line)
		word, arg, _ := strings.Cut(line, " ")
		var e publish.Event
		switch word {
		case "", "#":
			continue
		case "reset":
			m = new(publish.Machine)
			continue
		case "want":
			table := label(t, arg)
			names[table] = arg
			e = publish.Want{Table: table}
		case "settled":
			e = publish.Settled{}
		case "abort":
			e = publish.Abort{}
		default:
			t.Fatalf("line %q", line)
		}
		show, ok := m.Step(e)
		if !ok {
			fmt.Fprintf(&out, "> nothing; %s\n", m.Phase())
			continue
		}
		if show.Phase != m.Phase() {
			t.Errorf("%s: shows %s in %s", line, show.Phase, m.Phase())
		}
		fmt.Fprintf(&out, "> %s: routes %s, endpoints %s", show.Phase, names[show.Routes], names[show.Newest])
		for _, l := range show.Live {
			fmt.Fprintf(&out, " + %s", names[l])
		}
		fmt.Fprintln(&out)
	}
	if *update {
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !bytes.Equal(script, out.Bytes()) {
		t.Errorf("%s differs from what happened:\n%s", file, out.Bytes())
	}
}
