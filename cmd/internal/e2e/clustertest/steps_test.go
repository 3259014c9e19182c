package clustertest

import (
	"fmt"
	"strings"
	"testing"
)

// parse reads Pods: a name, then + for the present template, r for ready, t for one that terminates.
func parse(text string) (out []member) {
	for f := range strings.FieldsSeq(text) {
		name, flags, _ := strings.Cut(f, ":")
		out = append(out, member{name, strings.Contains(flags, "+"), strings.Contains(flags, "r"), strings.Contains(flags, "t")})
	}
	return out
}

func TestStepDeployment(t *testing.T) {
	for _, c := range []struct {
		wanted, surge, unavailable int
		pods, want                 string
	}{
		{3, 1, 0, "", "3 []"},
		{3, 1, 0, "a:+r b:+ c:+r", "0 []"},
		{2, 1, 0, "a:+r b:+r c:+rt", "0 []"},
		{1, 1, 0, "a:+r b:+ c:+r", "0 [b c]"},
		{5, 1, 0, "a:+r b:+r", "3 []"},
		{2, 1, 0, "a:r b:r", "1 []"},
		{2, 1, 0, "a:r b:r c:+", "0 []"},
		{2, 1, 0, "a:r b:r c:+r", "0 [b]"},
		{2, 1, 0, "a:r b:rt c:+r", "1 []"},
		{2, 1, 0, "a:r b: c:+r", "0 [b]"},
		{2, 0, 1, "a:r b:r", "0 [b]"},
		{2, 0, 1, "a:r b:rt", "1 []"},
		{0, 1, 0, "a:r b:+r", "0 [a b]"},
	} {
		create, remove := stepDeployment(c.wanted, c.surge, c.unavailable, parse(c.pods))
		if got := fmt.Sprint(create, remove); got != c.want {
			t.Errorf("%d wanted of %q: %s, want %s", c.wanted, c.pods, got, c.want)
		}
	}
}

func TestStepStatefulSet(t *testing.T) {
	const tenOrMore = "s-0:+r s-1:+r s-2:+r s-3:+r s-4:+r s-5:+r s-6:+r s-7:+r s-8:+r s-9:+r s-10:+r s-11:+r"
	for _, c := range []struct {
		wanted     int
		pods, want string
	}{
		{2, "", "[0 1] "},
		{2, "s-0:+r s-1:+r", "[] "},
		{2, "s-0:r s-1:r", "[] s-1"},
		{2, "s-0:r s-1:rt", "[] "},
		{2, "s-0:r", "[1] "},
		{2, "s-0:r s-1:+", "[] "},
		{2, "s-0:r s-1:+r", "[] s-0"},
		{1, "s-0:+r s-1:+r s-2:+rt", "[] s-1"},
		{9, tenOrMore, "[] s-11"},
		{12, strings.ReplaceAll(tenOrMore, "+", ""), "[] s-11"},
		{12, strings.Replace(tenOrMore, "s-9:+r", "s-9:+", 1), "[] "},
	} {
		create, remove := stepStatefulSet("s", c.wanted, parse(c.pods))
		if got := fmt.Sprint(create, " ", remove); got != c.want {
			t.Errorf("%d wanted of %q: %s, want %s", c.wanted, c.pods, got, c.want)
		}
	}
}
