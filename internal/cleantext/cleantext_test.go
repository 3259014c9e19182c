package cleantext

import (
	"testing"
	"unicode/utf8"
)

func TestTruncate(t *testing.T) {
	for _, c := range []struct {
		text string
		n    int
		want string
	}{
		{"", 3, ""}, {"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"abc", 0, ""}, {"abc", -1, ""},
		{"aé", 2, "a"}, {"aé", 3, "aé"}, {"日本", 5, "日"}, {"a\xffb", 9, "ab"}, {"\xe6\x97", 9, ""},
	} {
		if got := Truncate(c.text, c.n); got != c.want {
			t.Errorf("Truncate(%q, %d) = %q, want %q", c.text, c.n, got, c.want)
		}
	}
	if got := Printable("a\nb\tc\x00é\u202e日", 11); got != "a b c é " {
		t.Errorf("Printable: %q", got)
	}
}

func FuzzTruncate(f *testing.F) {
	f.Add("日本\xff", 4)
	f.Fuzz(func(t *testing.T, text string, n int) {
		for _, got := range []string{Truncate(text, n), Printable(text, n)} {
			if !utf8.ValidString(got) || len(got) > max(n, 0) {
				t.Errorf("%q: %d bytes of at most %d", got, len(got), n)
			}
		}
	})
}
