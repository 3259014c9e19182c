//go:build !wasip1

package main

import (
	"fmt"
	"io"
	"os"

	"github.com/cascadeinfer/cascade/policies"
)

// main is no part of the module, which must not link package fmt.
func main() { run(os.Stdout) }

// run moves a boundary that is too low, period by period.
func run(out io.Writer) {
	b := policies.BoundaryView{Boundary: 8192, High: policies.Unbounded, Peers: 4, Successors: 2}
	for i := range policies.Tokens(40) {
		b.Local = append(b.Local, policies.Sequence{Input: 100 * i, Length: 200 * i})
		b.Next = append(b.Next, policies.Sequence{Input: 300 * i, Length: 8192 + 300*i})
	}
	for period := range 6 {
		next := even{}.Refine(b)
		fmt.Fprintf(out, "period %d: boundary %v, proposed %v\n", period, b.Boundary, next)
		b.Boundary = next
	}
}
