package main

import (
	"path/filepath"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/docsite/helppage"
	"github.com/cascadeinfer/cascade/policies/testkit"
)

// TestReference compares the page of the book with the help of the commands.
func TestReference(t *testing.T) {
	text := helppage.Render(newRoot(&settings{}), "Command line on Kubernetes", "`cascade-kube COMMAND --help` prints the same. Exit codes: 0 for success and for a clean stop by a signal, 2 for a wrong command line, 1 for other errors. All other commands are those of [cascade](cli.md).")
	testkit.CompareGolden(t, filepath.Join("..", "..", "docs", "reference", "cli-kube.md"), []byte(text))
}
