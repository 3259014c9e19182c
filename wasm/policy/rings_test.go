package policy

import (
	"testing"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// TestRings: the second policy records into the memory of the first, whose records
// it does not have; what was too large is not kept.
func TestRings(t *testing.T) {
	var r Rings
	words := frame(abi.PutSelect, abi.Call{}, bids(16))
	one := func(name string, bid int, kept int) []host.Record {
		t.Helper()
		var records []host.Record
		t.Run(name, func(t *testing.T) {
			p := running(t, Config{Every: 1, Instances: 2, Rings: &r}, host.Config{}, leastLoad())
			if err := p.Warm([][]byte{words}); err != nil {
				t.Fatal(err)
			}
			if n := len(p.Records()); n != 0 {
				t.Errorf("%d records before the first call", n)
			}
			for range 10 {
				p.Select(bids(bid))
			}
			records = p.Records()
			if n := len(records); n != 10 {
				t.Errorf("%d records", n)
			}
		})
		if n := len(r.kept); n != kept {
			t.Errorf("%s: %d rings are kept, not %d", name, n, kept)
		}
		return records
	}
	first := one("first", 16, 2)
	memory := &r.kept[1].records[:1][0].Frame[:1][0]
	second := one("second", 3, 2)
	if &r.kept[0].records[:1][0].Frame[:1][0] != memory && &r.kept[1].records[:1][0].Frame[:1][0] != memory {
		t.Error("the memory is other memory")
	}
	if len(first[0].Frame) <= len(second[0].Frame) {
		t.Errorf("frames of %d and %d bytes", len(first[0].Frame), len(second[0].Frame))
	}
	one("large", 200, 0)
}
