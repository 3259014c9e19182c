package configure

import (
	"strings"
	"testing"
)

func TestReadSettings(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", ""}, {"a 5\nb 7", ""}, {"  b -1 # low\n\n# none\r\na 0", ""},
		{"a", "line 1: want"}, {"b 1\na 1 2", "line 2: want"}, {"\nc 1", `line 2: "c": unknown setting`},
		{"a 1\na 1", "line 2: a is set twice"}, {"a 11", "line 1: a must be a whole number from 0 to 10"},
		{"b -2", "b must be"}, {"a 1e3", "a must be"}, {"a 99999999999999999999", "a must be"},
	} {
		a, b := int64(-9), int64(-9)
		err := ReadSettings([]byte(c.in), Field{"a", func(v int64) { a = v }, 0, 10}, Field{"b", func(v int64) { b = v }, -1, 100})
		switch {
		case (err == nil) != (c.want == ""), err != nil && !strings.Contains(err.Error(), c.want):
			t.Errorf("%q: %v, want %q", c.in, err, c.want)
		case err != nil && (a != -9 || b != -9):
			t.Errorf("%q is wrong and set something", c.in)
		case strings.Contains(c.in, "a 5") && (a != 5 || b != 7):
			t.Errorf("%q gives %d and %d", c.in, a, b)
		}
	}
}

func FuzzReadSettings(f *testing.F) {
	f.Add([]byte("a 5\nb -1 # x"))
	f.Fuzz(func(t *testing.T, config []byte) {
		v := int64(3)
		err := ReadSettings(config, Field{"a", func(x int64) { v = x }, 0, 10}, Field{"b", func(int64) {}, -1, 1})
		if v < 0 || v > 10 || err != nil && v != 3 {
			t.Errorf("%q sets %d, %v", config, v, err)
		}
	})
}
