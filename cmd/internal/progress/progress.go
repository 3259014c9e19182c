// Package progress shows how far a command is: as a bar on a terminal, and as one line at the end elsewhere, where
// a bar would fill a log with carriage returns.
package progress

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Bar shows how many of a number of things are done. Its methods are safe for concurrent use.
type Bar struct {
	name     string
	total    int
	out      io.Writer
	terminal bool
	bar      *progressbar.ProgressBar

	mu   sync.Mutex
	done int
}

// New returns the bar of a command that writes to out. A total below 0 is not known.
func New(out io.Writer, name string, total int) *Bar {
	return newBar(out, name, total, isTerminal(out))
}

func newBar(out io.Writer, name string, total int, terminal bool) *Bar {
	name = fmt.Sprintf("%-14s", name)
	return &Bar{name: name, total: total, out: out, terminal: terminal, bar: progressbar.NewOptions(total,
		progressbar.OptionSetWriter(out), progressbar.OptionSetVisibility(terminal), progressbar.OptionSetDescription(name),
		progressbar.OptionShowCount(), progressbar.OptionSetWidth(30), progressbar.OptionThrottle(200*time.Millisecond))}
}

// isTerminal reports whether out is a terminal, or another device, where carriage returns do no harm.
func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// Set says how many are done.
func (b *Bar) Set(done int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.set(done)
}

// Add says that n more are done.
func (b *Bar) Add(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.set(b.done + n)
}

func (b *Bar) set(done int) {
	b.done = done
	_ = b.bar.Set(done) // what cannot be shown ends no command
}

// Describe replaces the text beside the bar; the line at the end keeps the name.
func (b *Bar) Describe(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bar.Describe(text)
}

// Clear makes room for a line of other text.
func (b *Bar) Clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	_ = b.bar.Clear()
}

// End leaves the bar as it is. The next output begins on a line of its own.
func (b *Bar) End() {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !b.terminal && b.total < 0:
		fmt.Fprintf(b.out, "%s %d\n", b.name, b.done)
		return
	case !b.terminal:
		fmt.Fprintf(b.out, "%s %d/%d\n", b.name, b.done, b.total)
		return
	case b.total >= 0 && b.done < b.total:
		_ = b.bar.Exit() // interrupted
	default:
		_ = b.bar.Finish()
	}
	fmt.Fprintln(b.out)
}
