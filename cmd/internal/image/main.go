// Command image writes Cascade's container image as an OCI layout, without a daemon, and its bill of
// materials beside it ("make image"). The same files give the same digest: times are
// $SOURCE_DATE_EPOCH, and owners and orders are fixed.
//
//	image --out DIR [--base REFERENCE] [--version V] [--revision R] FILE=PATH ...
//
// The first FILE is the program, which is the image's entry point at its PATH.
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
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	c := config{}
	f := flag.NewFlagSet("image", flag.ContinueOnError)
	out := f.String("out", "", "directory of the OCI layout; it is replaced")
	f.StringVar(&c.base, "base", "", "image to add the files to, by its reference in a registry; empty: nothing (scratch)")
	f.StringVar(&c.arch, "arch", runtime.GOARCH, "architecture, as GOARCH")
	f.StringVar(&c.version, "version", "", "version, for the labels")
	f.StringVar(&c.revision, "revision", "", "commit, for the labels")
	if err := f.Parse(args); err != nil {
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
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w: set it to the time of the commit, in seconds", err)
	}
	c.created = time.Unix(seconds, 0).UTC()
	digest, err := build(c, *out)
	if err != nil {
		return err
	}
	fmt.Println(digest)
	return nil
}
