package main

import (
	"fmt"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/docsite/helppage"
	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

// TestReference compares the reference of the book with the code that it is generated from: the help of the commands,
// the fields of the fleet file, and the comments of package abi. "make reference" writes it anew, and the metrics'
// with it, which a running fleet has to expose: see package processes.
func TestReference(t *testing.T) {
	dir := filepath.Join("..", "..", "docs", "reference")
	for name, text := range map[string]string{"cli": cliReference(), "config": configReference(), "abi": abiReference(t)} {
		t.Run(name, func(t *testing.T) { testkit.CompareGolden(t, filepath.Join(dir, name+".md"), []byte(text)) })
	}
}

// cliReference returns the page about the commands.
func cliReference() string {
	return helppage.Render(newRoot(&settings{}), "Command line", "`cascade COMMAND --help` prints the same. Exit codes, unless a command says otherwise: 0 for success and for a clean stop by a signal, 2 for a wrong command line, 1 for other errors.")
}

// markdownText escapes what Markdown would read as markup in a sentence of a table.
var markdownText = strings.NewReplacer("|", `\|`, "<", `\<`, "*", `\*`, "[", `\[`, "_", `\_`, "`", "\\`")

// configReference returns the page about the fields of the fleet file: a table for each field at the top of the file.
func configReference() string {
	var out strings.Builder
	fmt.Fprintf(&out, "# Fleet file\n\n"+helppage.Generated, "the structs that the fleet file is decoded into")
	out.WriteString("One YAML file describes a fleet to every daemon and command. `cascade config example` prints one with every field, `cascade config check FILE` checks one, and `cascade config explain FIELD` prints what is below. " +
		"Durations are written like 10s or 500ms, addresses as host:port, and paths are relative to the file. Unknown fields are rejected. `[]` stands for an element of a list, and `<kind>` for a kind of policy.\n")
	section := ""
	for _, f := range config.Fields() {
		if top, _, _ := strings.Cut(strings.ReplaceAll(f.Path, "[]", ""), "."); top != section {
			section = top
			fmt.Fprintf(&out, "\n## %s\n\n| field | type | default | meaning |\n|---|---|---|---|\n", section)
		}
		kind := f.Type
		if f.Unit != "" {
			kind += ", in " + f.Unit
		}
		fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", f.Path, kind, markdownText.Replace(f.Default), markdownText.Replace(f.Meaning))
	}
	return out.String()
}

// abiReference returns the page about the binary interface of policies: the comments of package abi.
func abiReference(t *testing.T) string {
	dir := filepath.Join("..", "..", "wasm", "abi")
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	testkit.NoError(t, err)
	var out strings.Builder
	fmt.Fprintf(&out, "# Policy ABI\n\n"+helppage.Generated, "the comments of [package abi](../../wasm/abi)")
	kinds := make(map[string]string)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, testkit.Must(os.ReadFile(file)), parser.ParseComments)
		testkit.NoError(t, err)
		if filepath.Base(file) == "doc.go" {
			out.WriteString(commentMarkdown(parsed.Doc.Text(), 2))
			continue
		}
		for _, group := range parsed.Comments {
			if name, rest, ok := strings.Cut(group.Text(), ": "); ok && !strings.ContainsAny(name, " \n") {
				if _, isKind := abi.ParseKind(name); isKind {
					kinds[name] = rest
				}
			}
		}
	}
	var names []string
	for k := range abi.NumKinds {
		names = append(names, abi.Kind(k).String())
	}
	for _, name := range append(names[1:], names[0]) { // configure, 0, is no decision
		if kinds[name] == "" {
			t.Fatalf("no file of package abi documents %s", name)
		}
		sentence := strings.ToUpper(kinds[name][:1]) + kinds[name][1:]
		fmt.Fprintf(&out, "## Kind %s\n\n%s", name, commentMarkdown(sentence, 3))
	}
	return strings.TrimRight(out.String(), "\n") + "\n"
}

// commentMarkdown returns a comment of Go as Markdown, with its headings at a level, and its layouts as blocks.
func commentMarkdown(text string, level int) string {
	printer := comment.Printer{HeadingLevel: level, HeadingID: func(*comment.Heading) string { return "" }}
	doc := new(comment.Parser).Parse(text)
	var out strings.Builder
	for _, block := range doc.Content {
		if code, ok := block.(*comment.Code); ok {
			out.WriteString("```text\n" + strings.Trim(code.Text, "\n") + "\n```\n\n")
			continue
		}
		out.Write(printer.Markdown(&comment.Doc{Content: []comment.Block{block}}))
		out.WriteString("\n")
	}
	return out.String()
}

// TestReferenceIsWhole: the pages have what their sources have, so that a generator that skips commands, fields or
// kinds fails.
func TestReferenceIsWhole(t *testing.T) {
	cli, fields, kinds := cliReference(), configReference(), abiReference(t)
	commands := 0
	var count func(c *cobra.Command)
	count = func(c *cobra.Command) {
		if !c.Hidden {
			commands++
			if !strings.Contains(cli, "\n## "+c.CommandPath()+"\n") {
				t.Errorf("the reference lacks %s", c.CommandPath())
			}
		}
		for _, sub := range c.Commands() {
			count(sub)
		}
	}
	count(newRoot(&settings{}))
	if headings := strings.Count(cli, "\n## "); headings != commands || commands < 50 {
		t.Errorf("%d commands, %d headings", commands, headings)
	}
	if strings.Contains(cli, "--zap-encoder") || strings.Contains(cli, os.Getenv("XDG_RUNTIME_DIR")) {
		t.Error("the reference has hidden flags, or what differs between hosts")
	}
	if rows := strings.Count(fields, "\n| `"); rows != len(config.Fields()) {
		t.Errorf("%d rows for %d fields", rows, len(config.Fields()))
	}
	for _, want := range []string{"## Kind partition", "## Kind configure", "cs_arena_v1(min i32)", "hdr_len"} {
		if !strings.Contains(kinds, want) {
			t.Errorf("the reference of the ABI lacks %q", want)
		}
	}
	if i := slices.Index(strings.Split(kinds, "\n"), "# Policy ABI"); i != 0 {
		t.Errorf("the title is in line %d", i)
	}
}
