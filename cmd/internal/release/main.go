// Command release builds parts of a release, for "make image" and "make release". The same files give the same
// bytes: times are $SOURCE_DATE_EPOCH, and owners and orders are fixed.
//
//	release image --out DIR [--base REFERENCE] [--version V] [--revision R] FILE=PATH ...
//
// writes a container image as an OCI layout, without a daemon, and its bill of materials beside it. The first FILE is
// the program, which is the image's entry point at its PATH.
//
//	release bom [--version V] PROGRAM
//
// prints a program's bill of materials.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 || args[0] != "image" && args[0] != "bom" {
		return fmt.Errorf("name a command: image or bom")
	}
	c := config{}
	f := flag.NewFlagSet(args[0], flag.ContinueOnError)
	out := f.String("out", "", "directory of the OCI layout; it is replaced")
	f.StringVar(&c.base, "base", "", "image to add the files to, by its reference in a registry; empty: nothing (scratch)")
	f.StringVar(&c.arch, "arch", runtime.GOARCH, "architecture, as GOARCH")
	f.StringVar(&c.version, "version", "", "version, for the labels and the bill of materials")
	f.StringVar(&c.revision, "revision", "", "commit, for the labels")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w: set it to the time of the commit, in seconds", err)
	}
	c.created = time.Unix(seconds, 0).UTC()
	if args[0] == "bom" {
		if f.NArg() != 1 {
			return fmt.Errorf("bom: name one program")
		}
		bom, err := billOfMaterials(f.Arg(0), c)
		if err != nil {
			return err
		}
		_, err = os.Stdout.Write(bom)
		return err
	}
	for _, arg := range f.Args() {
		from, to, ok := strings.Cut(arg, "=")
		if !ok || !strings.HasPrefix(to, "/") {
			return fmt.Errorf("%q: must be FILE=/PATH", arg)
		}
		c.files = append(c.files, file{from, to})
	}
	if *out == "" || len(c.files) == 0 {
		return fmt.Errorf("name a directory with --out, and at least the program")
	}
	digest, err := build(c, *out)
	if err != nil {
		return err
	}
	fmt.Println(digest)
	return nil
}
