package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestReference compares the reference of the fleet file with the structs that it is generated from. "make reference"
// writes it anew, and that of the metrics, which a running fleet has to expose: see package processes.
func TestReference(t *testing.T) {
	testkit.CompareGolden(t, filepath.Join("..", "..", "docs", "reference", "config.md"), []byte(configReference()))
}

// markdownText escapes what Markdown would read as markup in a sentence of a table.
var markdownText = strings.NewReplacer("|", `\|`, "<", `\<`, "*", `\*`, "[", `\[`, "_", `\_`, "`", "\\`")

// configReference returns the page about the fields of the fleet file: a table for each field at the top of the file
// with fields below it, and one for the others. Fields of a section that mean the same are one row.
func configReference() string {
	var out strings.Builder
	out.WriteString("# Fleet file\n\n*Generated from the structs that the fleet file is decoded into by `make reference`; a test compares the two.*\n\n" +
		"One YAML file describes a fleet to every daemon and command. `cascade config explain --example` prints one with every field, `cascade config check FILE` checks one, and `cascade config explain FIELD` prints what is below. " +
		"Durations are written like 10s or 500ms, addresses as host:port, and paths are relative to the file. Unknown fields are rejected. `[]` stands for an element of a list, and `<kind>` for a kind of policy.\n")
	const alone = "fields without others below them"
	var titles []string
	rows, paths := make(map[string][]string), make(map[string][]string)
	for i, f := range config.Fields() {
		title := section(f.Path)
		isAlone := func(j int) bool {
			return j < 0 || j == len(config.Fields()) || section(config.Fields()[j].Path) != title
		}
		if isAlone(i-1) && isAlone(i+1) {
			title = alone
		}
		if !slices.Contains(titles, title) {
			titles = append(titles, title)
		}
		kind := f.Type
		if f.Unit != "" {
			kind += ", in " + f.Unit
		}
		row := fmt.Sprintf(" | %s | %s | %s |\n", kind, markdownText.Replace(f.Default), markdownText.Replace(meaning(f)))
		if !slices.Contains(rows[title], row) {
			rows[title] = append(rows[title], row)
		}
		paths[title+row] = append(paths[title+row], "`"+f.Path+"`")
	}
	for _, title := range titles {
		fmt.Fprintf(&out, "\n## %s\n\n| field | type | default | meaning |\n|---|---|---|---|\n", title)
		for _, row := range rows[title] {
			out.WriteString("| " + strings.Join(paths[title+row], ", ") + row)
		}
	}
	return out.String()
}

// meaning returns what a field means, without its name, which the row has: "cert is the chain" becomes "The chain".
func meaning(f config.Field) string {
	name := f.Path[strings.LastIndexAny(f.Path, ".")+1:]
	for _, verb := range []string{" is ", " are "} {
		rest, ok := strings.CutPrefix(f.Meaning, name+verb)
		if ok && rest[0] >= 'a' && rest[0] <= 'z' && !strings.HasPrefix(rest, "tcp:") {
			return strings.ToUpper(rest[:1]) + rest[1:]
		}
	}
	return f.Meaning
}

// section returns the field at the top of the file that a path begins with.
func section(path string) string {
	top, _, _ := strings.Cut(strings.ReplaceAll(path, "[]", ""), ".")
	return top
}

// TestReferenceIsWhole: each field is in one row, so that a generator that skips fields fails.
func TestReferenceIsWhole(t *testing.T) {
	text := configReference()
	for _, f := range config.Fields() {
		rows := regexp.MustCompile(`(?m)^\|[^|]*`+"`"+regexp.QuoteMeta(f.Path)+"`"+`[^|]*\| .* \| .* \| .* \|$`).FindAllString(text, -1)
		if len(rows) != 1 {
			t.Errorf("%s is in %d rows", f.Path, len(rows))
		}
	}
}
