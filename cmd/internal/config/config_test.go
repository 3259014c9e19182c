package config

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/goccy/go-yaml"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// validFleet uses every section.
//
//go:embed testdata/fleet.yaml
var validFleet string

// TestScenarios runs testdata/*.txt (package datadriven; -rewrite rewrites the expected output).
//
//	edit [show=section]   reads testdata/fleet.yaml after replacements, OLD "=>" NEW, with "and"
//	                      between them, and prints the errors, or sections of the result
//	read                  reads a file
//	explain               explains the field on each line
func TestScenarios(t *testing.T) {
	for _, path := range []string{"testdata/invalid.txt", "testdata/defaults.txt", "testdata/explain.txt", "testdata/state.txt"} {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "read":
				return readText(d, d.Input)
			case "edit":
				text := validFleet
				for edit := range strings.SplitSeq(d.Input, "\nand\n") {
					before, after, _ := strings.Cut(edit, "\n=>")
					if !strings.Contains(text, before) {
						d.Fatalf(t, "%q is not in the file", before)
					}
					text = strings.Replace(text, before, strings.TrimPrefix(after, "\n"), 1)
				}
				return readText(d, text)
			case "explain":
				return explainLines(d.Input)
			}
			d.Fatalf(t, "unknown directive")
			return ""
		})
	}
}

// readText reads a fleet file and returns the errors, or the sections to show.
func readText(d *datadriven.TestData, text string) string {
	f, err := Read(strings.NewReader(text))
	if err != nil {
		return err.Error() + "\n"
	}
	out := "ok\n"
	for _, arg := range d.CmdArgs {
		for _, name := range arg.Vals {
			for i := range reflect.TypeFor[Fleet]().NumField() {
				if tag, _, _ := strings.Cut(reflect.TypeFor[Fleet]().Field(i).Tag.Get("yaml"), ","); tag == name {
					section, err := yaml.Marshal(reflect.ValueOf(f).Field(i).Interface())
					out += fmt.Sprintf("%s:\n%s", name, section)
					if err != nil {
						out += err.Error()
					}
				}
			}
		}
	}
	return out
}

func explainLines(input string) string {
	var out strings.Builder
	for path := range strings.Lines(input) {
		fields, err := Explain(strings.TrimSpace(path))
		for _, f := range fields {
			fmt.Fprintf(&out, "%s: %s; default: %s; unit: %q; section: %v\n", f.Path, f.Type, f.Default, f.Unit, f.Section())
		}
		if err != nil {
			fmt.Fprintln(&out, err)
		}
	}
	return out.String()
}

// TestExampleIsValid reads the example twice: as it is, and with every optional
// line switched on.
func TestExampleIsValid(t *testing.T) {
	plain, err := Read(strings.NewReader(Example))
	testkit.NoError(t, err)
	on := regexp.MustCompile(`(?m)^(\s*)# (\s*[a-z_]+:)`).ReplaceAllString(Example, "$1$2")
	all, err := Read(strings.NewReader(on))
	if err != nil {
		t.Fatalf("with every option on: %v\n%s", err, on)
	}
	if all.TLS.Cert == "" {
		t.Fatal("the options were not switched on")
	}
	if !all.Policies.ModulesEnabled() || plain.Policies.ModulesEnabled() || all.Policies.Trial != plain.Policies.Trial || all.Policies.Directory != plain.Policies.Directory {
		t.Errorf("the policies were not switched on: %+v", all.Policies)
	}
	if all.Preset != plain.Preset || all.Planner != plain.Planner || all.Migration != plain.Migration || all.Speed != plain.Speed {
		t.Errorf("the example shows other defaults than the code has: %+v, %+v; %+v, %+v", all.Planner, plain.Planner, all.Migration, plain.Migration)
	}
}

func TestLoadErrorNamesFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	testkit.NoError(t, os.WriteFile(path, []byte("speed: -1"), 0o600))
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error without the path: %v", err)
	}
}

// TestLongTextIsCut reads files in which something is invalid and long.
func TestLongTextIsCut(t *testing.T) {
	long := strings.Repeat("ü", 1<<16)
	for want, text := range map[string]string{
		`line 1: "üüüü`:                 "speed: " + long,
		`line 1: "|": must be a number`: "speed: |\n" + strings.Repeat("  1\n", 1<<10),
		`line 1: unknown field "üüüü`:   long + ": 1",
		`line 2: "x": must be a number`: "preset: " + long + "\nspeed: x",
		`line 2: mapping key "üüüü`:     long + ": 1\n" + long + ": 2",
		"could not find flow map":       "speed: {" + long,
	} {
		if _, err := Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 4<<10 {
			msg := fmt.Sprint(err)
			t.Errorf("%.400q (%d bytes), want %s", msg, len(msg), want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(validFleet)
	f.Add("models: [{name: a}]")
	f.Fuzz(func(t *testing.T, text string) {
		fleet, err := Read(strings.NewReader(text))
		if err != nil {
			return
		}
		if errs := fleet.Validate(); len(errs) > 0 {
			t.Fatalf("accepted, then refused: %v", errs[0])
		}
	})
}

// TestPresets checks what follows from the preset and is no field of the file.
func TestPresets(t *testing.T) {
	for preset, want := range map[string]string{"default": "4 on 1000", "round-robin": "4 on 1000", "paper": "3 off 1"} {
		f := testkit.Must(Read(strings.NewReader(strings.Replace(validFleet, "preset: default", "preset: "+preset, 1))))
		if got := fmt.Sprint(f.Migration.MaxConcurrent, " ", f.Migration.PrefixPull, " ", f.Planner.MinRequests); got != want {
			t.Errorf("preset %s has %s, want %s", preset, got, want)
		}
	}
}
