package policies

import "testing"

func TestAdapters(t *testing.T) {
	a := NewAdapters([]Replica{
		{ID: "r0", Model: "m", Adapters: []string{"sql", "sql", "poet"}},
		{ID: "r1", Model: "m", Adapters: []string{"poet"}},
		{ID: "r2", Model: "m"},
	})
	for _, x := range []struct {
		id     ReplicaID
		name   string
		serves bool
	}{
		{"r0", "sql", true}, {"r1", "sql", false}, {"r2", "sql", false},
		{"r0", "poet", true}, {"r1", "poet", true}, {"r2", "poet", false},
		{"r2", "m", true}, {"r2", "", true}, {"r9", "m", true}, {"r9", "poet", false},
	} {
		if got := a.CanServe(x.id, x.name); got != x.serves {
			t.Errorf("%s serves %q: %v, want %v", x.id, x.name, got, x.serves)
		}
	}
	if !a.Restricts("sql") || a.Restricts("m") || (Adapters{}).Restricts("sql") || !(Adapters{}).CanServe("r0", "sql") {
		t.Error("what narrows the choice is wrong")
	}
}
