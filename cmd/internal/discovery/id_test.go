package discovery

import (
	"strings"
	"testing"
)

func TestReplicaID(t *testing.T) {
	for _, c := range []struct{ name, uid, want string }{
		{"vllm-7d9c6b5f4-x2x8z", "3f1c2b7e-0000", "vllm-7d9c6b5f4-x2x8z.3f1c2b7e-0000"},
		{"a.b", "1", "a.b.1"},
		{"", "1", ""}, {"a", "", ""}, {"A", "1", ""}, {"a", "1.2", ""}, {"a/b", "1", ""}, {"a\nb", "1", ""}, {"-a", "1", ""}, {"a..b", "1", ""},
		{strings.Repeat("a", 100), strings.Repeat("1", 36), ""},
	} {
		id, err := ReplicaID(c.name, c.uid)
		if (err == nil) != (c.want != "") || err == nil && id != c.want {
			t.Errorf("%.20q %q: %q, %v", c.name, c.uid, id, err)
			continue
		}
		if name, uid, ok := PodOf(c.want); c.want != "" && (!ok || name != c.name || uid != c.uid) {
			t.Errorf("%s is of %q %q", c.want, name, uid)
		}
	}
	for _, id := range []string{"", "r0", ".", "a.", ".b"} {
		if _, _, ok := PodOf(id); ok {
			t.Errorf("%q is the id of a Pod", id)
		}
	}
}
