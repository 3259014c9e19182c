// Package chapter turns the commands of a chapter of the book into a script, and compares what they print with what
// the chapter shows. Package markdown describes the words behind a block's language that say what a block is for.
//
// A chapter's blocks share one directory and one shell, in their order, as they do for a reader who types them. It
// runs nothing itself: the caller runs Script with bash, in a directory of its own, and gives what was printed to
// CheckOutput.
package chapter

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/cmd/internal/docsite/markdown"
)

// Use is what a block is for.
type Use int

// The uses of blocks.
const (
	Quoted Use = iota // to be read only
	Quick             // commands that any test runs
	Slow              // commands that need seconds, or a running fleet
	Unrun             // commands that no test runs
	File              // the text of a file
	Output            // what the commands before it print
)

// Block is a block of a chapter.
type Block struct {
	Use  Use
	Line int    // of its first line of text, from 1
	Text string // with its last line break
	// Name is the path of a file, or the reason why commands do not run.
	Name string
}

// fileName matches the names that files may have: below the chapter's directory.
var fileName = regexp.MustCompile(`^[a-zA-Z0-9_-][a-zA-Z0-9_.-]*(/[a-zA-Z0-9_-][a-zA-Z0-9_.-]*)*$`)

// quoted are the languages of blocks that may only be read. Others are an error, so that no command is skipped for
// the name of its shell.
var quoted = []string{"text", "yaml", "json", "go", "c", "rego", "http"}

// Blocks returns the blocks of a chapter. It fails for a block whose use is not clear.
func Blocks(d *markdown.Document) ([]Block, error) {
	var out []Block
	for _, m := range d.Blocks {
		b := Block{Line: m.Line, Text: m.Text}
		reason, isUnrun := strings.CutPrefix(m.Words, "unrun: ")
		name, isFile := strings.CutPrefix(m.Words, "file: ")
		switch {
		case m.Language == "sh" && m.Words == "":
			b.Use = Quick
		case m.Language == "sh" && m.Words == "slow":
			b.Use = Slow
		case m.Language == "sh" && isUnrun:
			b.Use, b.Name = Unrun, reason
		case m.Language == "sh":
			return nil, fmt.Errorf("line %d: %q behind sh: must be nothing, slow, or unrun: and the reason", m.Line, m.Words)
		case !slices.Contains(quoted, m.Language):
			return nil, fmt.Errorf("line %d: language %q: commands are sh; other blocks are %s", m.Line, m.Language, strings.Join(quoted, ", "))
		case isFile && !fileName.MatchString(name):
			return nil, fmt.Errorf("line %d: file name %q: must be below the chapter's directory", m.Line, name)
		case isFile:
			b.Use, b.Name = File, name
		case m.Words == "output" && (len(out) == 0 || out[len(out)-1].Use != Quick && out[len(out)-1].Use != Slow):
			return nil, fmt.Errorf("line %d: the block before this output has no commands that run", m.Line)
		case m.Words == "output":
			b.Use = Output
		case m.Words != "":
			return nil, fmt.Errorf("line %d: %q behind %s: must be nothing, output, or file: and a name", m.Line, m.Words, m.Language)
		}
		out = append(out, b)
	}
	return out, nil
}

// runs reports whether the block's commands run, slow ones with all.
func (b Block) runs(all bool) bool { return b.Use == Quick || b.Use == Slow && all }

// Script returns the blocks as a script for bash, which ends with another code than 0 at the first command that fails,
// and the number of blocks whose commands it runs. What the block at index i prints is written to the file i.out of the
// directory that $OUT names.
func Script(blocks []Block, all bool) (script string, runs int) {
	var out strings.Builder
	out.WriteString("set -e -o pipefail\n")
	for i, b := range blocks {
		switch {
		case b.Use == File:
			const end = "end-of-the-file-of-a-chapter"
			fmt.Fprintf(&out, "mkdir -p %s\ncat > %s <<'%s'\n%s%s\n", path.Dir(b.Name), b.Name, end, b.Text, end)
		case b.runs(all):
			runs++
			fmt.Fprintf(&out, "echo line %d >&2\n{\n%s} > \"$OUT\"/%d.out 2>&1\n", b.Line, b.Text, i)
		}
	}
	return out.String(), runs
}

// CheckOutput compares what blocks print with the output that the chapter shows below them. read returns what the
// block at an index has printed.
func CheckOutput(blocks []Block, all bool, read func(i int) (string, error)) error {
	for i, b := range blocks {
		if b.Use != Output || !blocks[i-1].runs(all) {
			continue
		}
		printed, err := read(i - 1)
		if err != nil {
			return err
		}
		if !matches(lines(b.Text), lines(printed)) {
			return fmt.Errorf("line %d: the commands above print otherwise:\n%s", b.Line, printed)
		}
	}
	return nil
}

// lines returns the lines of a text without blanks at their ends.
func lines(text string) []string {
	split := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i := range split {
		split[i] = strings.TrimRight(split[i], " \t")
	}
	return split
}

// elision is a line that stands for any number of lines.
const elision = "…"

// matches reports whether printed lines are the shown ones.
func matches(shown, printed []string) bool {
	switch {
	case len(shown) == 0:
		return len(printed) == 0
	case shown[0] == elision:
		return matches(shown[1:], printed) || len(printed) > 0 && matches(shown, printed[1:])
	}
	return len(printed) > 0 && shown[0] == printed[0] && matches(shown[1:], printed[1:])
}
