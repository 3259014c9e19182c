package monitoring

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// parts are what each section of the runbook answers, in this order.
var parts = []string{"**What you see.** ", "**Why it matters.** ", "**Find the cause.**\n\n```sh\n", "**What to do.** ", "**What not to do.** Do not "}

// objects are those of faults that the runbook's table names beside the kinds.
var objects = []string{"certificates", "limits", "read", "write", "notes", "counters", "garbage", "refused", "restart", "plan", "resources", "file"}

// sections returns the runbook's sections by their titles.
func sections(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, s := range strings.Split(string(Deployed(t, RunbookFile)), "\n## ")[1:] {
		title, text, _ := strings.Cut(s, "\n")
		if out[title] != "" {
			t.Errorf("two sections are called %s", title)
		}
		out[title] = text
	}
	return out
}

// TestRunbookSections: each alert leads to a section, which answers what a reader of it asks; no section is about an
// alert that does not exist.
func TestRunbookSections(t *testing.T) {
	book := sections(t)
	for _, a := range Alerts(t) {
		text, ok := book[a.Name]
		if !ok {
			t.Errorf("%s has no section", a.Name)
			continue
		}
		delete(book, a.Name)
		if want := "deploy/runbook.md#" + strings.ToLower(a.Name); a.Annotations["runbook_url"] != want {
			t.Errorf("%s links %s, want %s", a.Name, a.Annotations["runbook_url"], want)
		}
		if !strings.Contains(text, "Severity: "+a.Labels["severity"]+".") {
			t.Errorf("%s is a %s, and its section does not say so", a.Name, a.Labels["severity"])
		}
		rest := text
		for _, part := range parts {
			var found bool
			if _, rest, found = strings.Cut(rest, part); !found {
				t.Errorf("the section %s has no %q where it should be", a.Name, strings.TrimSpace(part))
				break
			}
		}
	}
	for title := range book {
		t.Errorf("the section %s is about no alert", title)
	}
}

// TestRunbookLinks: links within the runbook, and to files beside it, lead somewhere.
func TestRunbookLinks(t *testing.T) {
	book := sections(t)
	anchors := map[string]bool{}
	for title := range book {
		anchors[strings.ToLower(title)] = true
	}
	links := regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(string(Deployed(t, RunbookFile)), -1)
	if len(links) < 20 {
		t.Errorf("found %d links: the pattern is wrong", len(links))
	}
	for _, m := range links {
		if anchor, ok := strings.CutPrefix(m[1], "#"); ok {
			if !anchors[anchor] {
				t.Errorf("no section for the link %s", m[1])
			}
		} else if _, err := os.Stat(filepath.Join(testkit.Root(t), "deploy", m[1])); err != nil {
			t.Error(err)
		}
	}
}

// TestRunbookFaults: each kind of fault that the code reports, each of its table, and each that "make faults"
// injects has a section, which says so.
func TestRunbookFaults(t *testing.T) {
	book := string(Deployed(t, RunbookFile))
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("FAULT `(\\w+)`[.,]").FindAllStringSubmatch(book, -1) {
		named[m[1]] = true
	}
	kinds := faultKinds(t)
	_, table, found := strings.Cut(book, "| FAULT kind, object |")
	table, _, _ = strings.Cut(table, "\n\n")
	if !found {
		t.Fatal("the runbook has no table of faults")
	}
	for _, row := range strings.Split(table, "\n")[2:] {
		cell, _, _ := strings.Cut(strings.TrimPrefix(row, "|"), "|")
		for _, m := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(cell, -1) {
			if !slices.Contains(objects, m[1]) {
				kinds = append(kinds, m[1])
			}
		}
	}
	for _, kind := range kinds {
		if !named[kind] {
			t.Errorf("no section has FAULT `%s`", kind)
		}
	}
	injected := regexp.MustCompile("(?m)^\\| ([^|]+) \\| [^|]+ \\| [^|]+ \\| `cascade_").FindAllStringSubmatch(string(testkit.Must(os.ReadFile(filepath.Join(testkit.Root(t), "cmd/cascade-lab/results/2026-12-01-faults.txt")))), -1)
	if len(injected) < 30 {
		t.Fatalf("read %d rows of the table of injected faults: the pattern is wrong", len(injected))
	}
	lists := strings.Join(regexp.MustCompile("(?m)`make faults` injects: .*$").FindAllString(book, -1), "\n")
	for _, m := range injected {
		if !regexp.MustCompile(`(?m)(: |; )` + regexp.QuoteMeta(m[1]) + `(;|\.$)`).MatchString(lists) {
			t.Errorf("no section names the injected fault %q", m[1])
		}
	}
}
