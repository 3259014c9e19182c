// Command docsite builds the static site of the documentation: "make docs" runs it. It needs no network, and the site
// needs none.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/cascadeinfer/cascade/cmd/internal/docsite/site"
)

func main() {
	root := flag.String("root", ".", "root of the repository")
	out := flag.String("out", ".cache/site", "directory that the site is written into; a former site is replaced")
	flag.Parse()
	if err := run(*root, *out); err != nil {
		fmt.Fprintln(os.Stderr, "docsite:", err)
		os.Exit(1)
	}
}

func run(root, out string) error {
	built, err := site.Build(os.DirFS(root))
	if err != nil {
		return err
	}
	if err := built.Write(out); err != nil {
		return err
	}
	fmt.Printf("%d files in %s: open %s/index.html\n", len(built), out, out)
	return nil
}
