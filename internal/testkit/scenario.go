package testkit

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// A Player runs one command of a scenario, divided at its spaces, and returns the lines
// of its output. An error fails the test at that command.
type Player func(words []string) (output []string, err error)

// TestScenarios runs each *.txt of dir in a subtest, with a Player that start returns.
// The files have the form of package datadriven (commands, "----", output, an empty
// line; -rewrite rewrites the outputs), and this package adds one thing: a directive may
// be several lines, each of them a command, so that a command without output does not
// need a paragraph of its own. If a command before the last one has output, each line of
// it begins with the command.
func TestScenarios(t *testing.T, dir string, start func(t *testing.T) Player) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios in %s: %v", dir, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			play := start(t)
			datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
				return runDirective(t, d, play)
			})
		})
	}
}

func runDirective(t *testing.T, d *datadriven.TestData, play Player) string {
	commands := []string{strings.Join(Words(d), " ")}
	if d.Input != "" {
		commands = append(commands, strings.Split(d.Input, "\n")...)
	}
	var out strings.Builder
	for i, command := range commands {
		words := strings.Fields(command)
		if len(words) == 0 || strings.HasPrefix(command, "#") {
			continue
		}
		output, err := play(words)
		if err != nil {
			d.Fatalf(t, "%s: %v", command, err)
		}
		for _, line := range output {
			if i < len(commands)-1 {
				line = command + ": " + line
			}
			fmt.Fprintln(&out, line)
		}
	}
	return out.String()
}

// CompareGolden compares a file with what the test has produced; -rewrite writes it.
func CompareGolden(t *testing.T, file string, got []byte) {
	t.Helper()
	if flag.Lookup("rewrite").Value.String() == "true" {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(got, want) {
		return
	}
	gotLines, wantLines := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
	i := 0
	for i < min(len(gotLines), len(wantLines)) && gotLines[i] == wantLines[i] {
		i++
	}
	t.Errorf("%s:%d differs; run with -rewrite and read the difference. Got:\n%s", file, i+1, strings.Join(gotLines[i:min(i+20, len(gotLines))], "\n"))
}

// Words returns a command and its arguments.
func Words(d *datadriven.TestData) []string {
	words := []string{d.Cmd}
	for _, arg := range d.CmdArgs {
		words = append(words, arg.String())
	}
	return words
}

// SetFields sets the fields of *to, a struct, that words name: "Sample=3", "Counts=1,2" for
// a slice, "Draining" for a bool, "Self=" for zero. The case of names does not matter.
func SetFields(to any, words []string) error {
	for _, word := range words {
		name, value, found := strings.Cut(word, "=")
		if !found {
			value = "true"
		}
		f := reflect.ValueOf(to).Elem().FieldByNameFunc(func(field string) bool { return strings.EqualFold(field, name) })
		if !f.IsValid() {
			return fmt.Errorf("%T has no field %q", to, name)
		}
		f.SetZero()
		if value == "" {
			continue
		}
		if f.Kind() == reflect.Slice {
			for item := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == ',' }) {
				f.Set(reflect.Append(f, reflect.Zero(f.Type().Elem())))
				if _, err := fmt.Sscan(item, f.Index(f.Len()-1).Addr().Interface()); err != nil {
					return fmt.Errorf("%s: %w", word, err)
				}
			}
		} else if _, err := fmt.Sscan(value, f.Addr().Interface()); err != nil {
			return fmt.Errorf("%s: %w", word, err)
		}
	}
	return nil
}
