package measure

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// What is wrong with the fake's work; see its fake_wrong.
var wrongs = map[string]struct {
	how int
	bad []string // paths whose bytes or sums are found wrong; all others are right
}{
	"kernels move nothing": {1, []string{"within the GPU, kernel", "to the host, gather kernel", "from the host, scatter kernel", "from another process, kernel"}},
	"one block for all": {2, []string{"within the GPU, kernel", "within the GPU, batch call", "to the host, gather kernel", "to the host, batch call",
		"from the host, scatter kernel", "from the host, batch call", "checksum, kernel", "from another process, kernel"}},
	"another's place":        {3, []string{"within the GPU, kernel", "to the host, gather kernel", "from the host, scatter kernel", "from another process, kernel"}},
	"the ends are left out":  {4, []string{"within the GPU, kernel", "to the host, gather kernel", "from the host, scatter kernel", "from another process, kernel"}},
	"kernels report no sums": {5, []string{"within the GPU, kernel", "to the host, gather kernel", "from the host, scatter kernel", "checksum, kernel", "from another process, kernel"}},
	"copies move nothing":    {6, []string{"contiguous", "a call per block", "batch call"}},
	"everything is as it is": {0, nil},
}

// paths is how many rows of Copies and From there are where all is right.
const paths = 5 + 5 + 5 + 2 + 3

// Whatever a GPU does wrong without saying so is found, by the path that it spoils, and no
// path that was found wrong has a figure.
func TestWrongWorkIsFound(t *testing.T) {
	d, c, library := opened(t)
	o := owner(t, library)
	for name, w := range wrongs {
		t.Run(name, func(t *testing.T) {
			r := newBench(t, config(d))
			// What is right comes first: then the targets have the right bytes already.
			if err := both(r, o, nil); err != nil {
				t.Fatal(err)
			}
			var rows []Row
			c.Set("fake_wrong", w.how)
			err := both(r, o, &rows)
			c.Set("fake_wrong", 0)
			if (err != nil) != (w.bad != nil) || err != nil && !strings.Contains(err.Error(), "its source has") {
				t.Fatalf("%v", err)
			}
			if w.how == 6 { // all copies, of every part
				w.bad = nil
				for _, part := range []string{Within, ToHost, FromHost} {
					for _, path := range []string{"contiguous", "a call per block", "batch call"} {
						w.bad = append(w.bad, part+", "+path)
					}
				}
				w.bad = append(w.bad, Across+", contiguous")
			}
			found := 0
			for _, bad := range w.bad {
				n := strings.Count(fmt.Sprint(err), bad)
				if n == 0 {
					t.Errorf("%s passes: %v", bad, err)
				}
				found += n
			}
			if lines := strings.Count(fmt.Sprint(err), "its source has"); lines != found || len(rows) != paths-found {
				t.Errorf("%d errors, %d expected ones, %d rows of %d: %v", lines, found, len(rows), paths, err)
			}
			for _, row := range rows {
				if slices.ContainsFunc(w.bad, func(bad string) bool { return strings.HasPrefix(row.Part+", "+row.Path, bad) }) {
					t.Errorf("%+v has a figure", row)
				}
			}
		})
	}
}

// both makes Copies and From.
func both(r *Bench, o *Owner, rows *[]Row) error {
	copies, err := r.MeasureCopies()
	across, failed := r.MeasurePulls(o)
	if rows != nil {
		*rows = append(copies, across...)
	}
	return errors.Join(err, failed)
}

// An owner that has other bytes than it says it has is found, as where the name of its
// pool opens another's memory: the bench's own pools are filled by the same formula.
func TestAnotherPoolIsFound(t *testing.T) {
	d, _, library := opened(t)
	o := owner(t, library)
	r := newBench(t, config(d))
	if other, err := NewBench(config(d)); err != nil || other.seed == r.seed || o.Seed == r.seed {
		t.Errorf("the same bytes in several pools, or %v", err)
	} else {
		defer other.Close()
	}
	for name, seed := range map[string]uint64{"a word on": o.Seed + 1, "the bench's": r.seed, "none": 0} {
		announced := o.Seed
		o.Seed = seed
		rows, err := r.MeasurePulls(o)
		o.Seed = announced
		if err == nil || len(rows) != 0 || strings.Count(err.Error(), "arrived with other bytes") != 1 || strings.Count(err.Error(), "reports another sum") != 2 {
			t.Errorf("%s: %v, %v", name, rows, err)
		}
	}
	if rows, err := r.MeasurePulls(o); err != nil || len(rows) != 3 {
		t.Errorf("%v, %v", rows, err)
	}
}

// A verification of a path that does nothing, or another's work, fails whatever the target
// had before.
func TestPathsThatDoOtherWork(t *testing.T) {
	d, _, _ := opened(t)
	r := newBench(t, config(d))
	s := r.config.Shape
	to, want := r.poolDestination(r.pairs, side{at: r.dst}), s.expectedSums(r.seed, r.sourceOffset)
	copied := func(from func(i int) uint32) func() error {
		return func() error {
			return r.forEachPart(s, func(i, g int) error {
				return r.stream.Copy(s.partPointer(r.dst, g, r.pairs[i][1]), s.partPointer(r.src, g, from(i)), s.BlockBytes)
			})
		}
	}
	right := copied(func(i int) uint32 { return r.pairs[i][0] })
	for name, w := range map[string]func() error{
		"nothing":   func() error { return nil },
		"one block": copied(func(int) uint32 { return r.pairs[0][0] }),
		"in order":  copied(func(i int) uint32 { return uint32(i) }),
		"reversed":  copied(func(i int) uint32 { return r.pairs[s.Plan-1-i][0] }),
		"but one": func() error {
			return errors.Join(right(), r.stream.Fill(s.partPointer(r.dst, 2, r.pairs[6][1])+4095, 0x5a, 1))
		},
	} {
		if err := errors.Join(right(), r.verify(copyPath{to: to, want: want, work: right})); err != nil {
			t.Fatal(err)
		}
		if err := r.verify(copyPath{to: to, want: want, work: w}); err == nil || !strings.Contains(err.Error(), "other bytes") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// All words of a pattern differ, and so do all parts of pools of three owners.
func TestPattern(t *testing.T) {
	s := Shape{Regions: 3, BlockBytes: 512, Pool: 64, Plan: 64}
	seen := map[uint64]bool{}
	for _, seed := range []uint64{0, 1 << 40, 12345678901234567} {
		for _, sum := range s.expectedSums(seed, s.packedOffset) {
			if seen[sum] {
				t.Fatalf("two parts have the sum %#x", sum)
			}
			seen[sum] = true
		}
	}
	b, half := make([]byte, 64), make([]byte, 32)
	fillPattern(b, 7, 4096)
	fillPattern(half, 7, 4096+32)
	if !slices.Equal(b[32:], half) || slices.Equal(b[:32], half) {
		t.Error("the pattern depends on where one begins")
	}
}
