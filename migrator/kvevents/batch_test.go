package kvevents_test

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/kvevents"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// recorder is an Index that writes down what it gets.
type recorder struct{ lines []string }

func (r *recorder) Store(e *prefix.Stored) {
	parent := fmt.Sprintf("root %s", roots[e.Root])
	if e.HasParent {
		parent = fmt.Sprintf("after %x", e.Parent)
	}
	r.lines = append(r.lines, fmt.Sprintf("store %x %s tokens %d by %d extra %x group %d tier %d", e.Hashes, parent, e.Tokens, e.BlockTokens, e.Extra, e.Group, e.Tier))
}

func (r *recorder) Remove(e prefix.Removed) {
	r.lines = append(r.lines, fmt.Sprintf("remove %x group %d tier %d", e.Hashes, e.Group, e.Tier))
}

func (r *recorder) Clear() { r.lines = append(r.lines, "clear") }

var roots = map[prefix.Hash]string{
	prefix.Root("m", "", ""):           "m",
	prefix.Root("m", "", "tenant-a"):   "m, salt tenant-a",
	prefix.Root("m", "ad", "tenant-a"): "m, adapter ad, salt tenant-a",
}

// TestBatchScenarios decodes the batches of testdata/batches (decode HEX).
func TestBatchScenarios(t *testing.T) {
	testkit.TestScenarios(t, "testdata/batches", func(*testing.T) testkit.Player {
		d := kvevents.Decoder{Model: "m"}
		return func(words []string) ([]string, error) {
			b, err := hex.DecodeString(words[1])
			if err != nil {
				return nil, err
			}
			var r recorder
			ignored := d.Ignored
			if err := d.Decode(b); err != nil {
				r.lines = append(r.lines, "error: "+err.Error())
			}
			d.Apply(&r)
			if d.Ignored > ignored {
				r.lines = append(r.lines, fmt.Sprintf("%d ignored", d.Ignored-ignored))
			}
			return r.lines, nil
		}
	})
}

// golden returns the batches of testdata/batches.
func golden(t testing.TB) (out [][]byte) {
	f := testkit.Must(os.Open("testdata/batches/batches.txt"))
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if text, ok := strings.CutPrefix(s.Text(), "decode "); ok {
			if b, err := hex.DecodeString(text); err == nil {
				out = append(out, b)
			}
		}
	}
	if len(out) < 10 {
		t.Fatal("testdata/batches/batches.txt has few batches: the test looks in the wrong place")
	}
	return out
}

// TestCutOff cuts every batch off at every byte. What is left is malformed, and nothing of it
// is applied; the batch after it is decoded as if nothing had happened.
func TestCutOff(t *testing.T) {
	for i, b := range golden(t) {
		d := kvevents.Decoder{Model: "m"}
		whole := d.Decode(b) == nil
		var want recorder
		d.Apply(&want)
		for n := range b {
			var r recorder
			if !whole {
				break
			}
			if err := d.Decode(b[:n]); err == nil {
				t.Fatalf("batch %d: %d of %d bytes are accepted", i, n, len(b))
			}
			if d.Apply(&r); r.lines != nil {
				t.Fatalf("batch %d: %d of %d bytes change %q", i, n, len(b), r.lines)
			}
		}
		if whole {
			var r recorder
			testkit.NoError(t, d.Decode(b))
			if d.Apply(&r); strings.Join(r.lines, "\n") != strings.Join(want.lines, "\n") {
				t.Errorf("batch %d: decoded again it is %q, was %q", i, r.lines, want.lines)
			}
		}
	}
}

// TestRank checks that batches of another rank are not applied, and that a missing rank is 0.
func TestRank(t *testing.T) {
	d := kvevents.Decoder{Rank: 3}
	three, _ := hex.DecodeString("93cb41da48c3e85000009181a474797065b0416c6c426c6f636b73436c656172656403")
	none, _ := hex.DecodeString("92cb41da48c3e85000009181a474797065b0416c6c426c6f636b73436c6561726564")
	var r recorder
	if err := d.Decode(three); err != nil {
		t.Error(err)
	}
	if err := d.Decode(none); !errors.Is(err, kvevents.ErrRank) {
		t.Errorf("a batch without a rank: %v", err)
	}
	if d.Apply(&r); r.lines != nil {
		t.Errorf("%q is applied", r.lines)
	}
	d.Rank = 0
	if err := d.Decode(none); err != nil {
		t.Error(err)
	}
	if err := d.Decode(three); !errors.Is(err, kvevents.ErrRank) {
		t.Errorf("a batch of rank 3: %v", err)
	}
}

// batch encodes an event of that many blocks of 16 ids, as engines send it.
func batch(blocks int) []byte {
	b, _ := hex.DecodeString("93cb41da48c3e85000009186a474797065ab426c6f636b53746f726564ac626c6f636b5f686173686573dc")
	b = append(b, byte(blocks>>8), byte(blocks))
	for i := range blocks {
		h := uint64(i+1) * 0x9e3779b97f4a7c15
		b = append(b, 0xcf, byte(h>>56), byte(h>>48), byte(h>>40), byte(h>>32), byte(h>>24), byte(h>>16), byte(h>>8), byte(h))
	}
	text := func(s string) { b = append(append(b, 0xa0|byte(len(s))), s...) }
	text("parent_block_hash")
	b = append(b, 0xc0)
	text("token_ids")
	b = append(b, 0xdc, byte(blocks*16>>8), byte(blocks*16))
	for i := range blocks * 16 {
		switch i % 4 {
		case 0:
			b = append(b, 0xce, 0, 1, byte(i>>8), byte(i))
		default:
			b = append(b, 0xcd, byte(i>>8)|1, byte(i))
		}
	}
	text("block_size")
	b = append(b, 16)
	text("extra_keys")
	b = append(b, 0xdc, byte(blocks>>8), byte(blocks))
	for range blocks {
		b = append(b, 0xc0)
	}
	return append(b, 0)
}

// TestAllocs checks that decoding and applying allocate nothing once the memory is there.
func TestAllocs(t *testing.T) {
	b, d, x := batch(1000), kvevents.Decoder{Model: "m"}, prefix.NewIndex(2000, 0)
	run := func() {
		testkit.NoError(t, d.Decode(b))
		d.Apply(x)
	}
	run()
	if x.Len() != 1000 {
		t.Fatalf("%d blocks", x.Len())
	}
	if allocs := testing.AllocsPerRun(20, run); allocs > 0 {
		t.Errorf("%v allocations for a batch", allocs)
	}
}

// BenchmarkDecode decodes a batch of 1,000 blocks.
func BenchmarkDecode(b *testing.B) {
	payload, d := batch(1000), kvevents.Decoder{Model: "m"}
	b.ReportAllocs()
	b.SetBytes(int64(len(payload)))
	for b.Loop() {
		testkit.NoError(b, d.Decode(payload))
	}
}
