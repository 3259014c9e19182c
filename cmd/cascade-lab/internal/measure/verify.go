package measure

import (
	"encoding/binary"
	"fmt"

	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// stride is odd, so that no two words of a pattern are equal.
const stride = 0x5851f42d4c957f2d

// fillPattern writes the bytes of memory of a seed from byte at on: the word at byte 8·i
// is (seed + i)·stride modulo 2^64, little-endian. at and the length of b are multiples
// of 8. With this formula a processor knows the checksum of a block that it has not seen.
func fillPattern(b []byte, seed uint64, at int64) {
	word := (seed + uint64(at/8)) * stride
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, word)
		word += stride
	}
}

// expectedSums returns the sums of the parts of a plan, by entry and region, if part (i,
// g) comes from byte at(i, g) of memory of a seed.
func (s Shape) expectedSums(seed uint64, at func(i, g int) int64) []uint64 {
	part, out := make([]byte, s.BlockBytes), make([]uint64, 0, s.Plan*s.Regions)
	for i := range s.Plan {
		for g := range s.Regions {
			fillPattern(part, seed, at(i, g))
			out = append(out, transport.RawSum(part))
		}
	}
	return out
}

// packedOffset returns the offset of a part in packed blocks.
func (s Shape) packedOffset(i, g int) int64 {
	return (int64(i)*int64(s.Regions) + int64(g)) * s.BlockBytes
}

// sourceOffset returns the offset of the part of the plan's source block i in a pool.
func (r *Bench) sourceOffset(i, g int) int64 {
	return int64(r.config.Shape.partPointer(0, g, r.pairs[i][0]))
}

// destination is memory that blocks are copied to.
type destination struct {
	clear func() error
	sums  func() ([]uint64, error) // of the present bytes, by entry and region
}

// poolDestination is the target pool, with the parts where the plan has them, or packed.
func (r *Bench) poolDestination(pairs [][2]uint32, to side) *destination {
	return &destination{
		clear: func() error { return r.stream.Fill(r.dst, 0, r.config.Shape.PoolBytes()) },
		sums: func() ([]uint64, error) {
			if err := r.launch(transport.KernelSumDestination, r.config.Groups[0], pairs, side{}, to); err != nil {
				return nil, err
			}
			if err := r.stream.Wait(); err != nil {
				return nil, err
			}
			return r.launchSums(len(pairs)), nil
		},
	}
}

// hostDestination is host memory with packed parts.
func (r *Bench) hostDestination(h *cuda.HostMemory) *destination {
	return &destination{
		clear: func() error { clear(h.Bytes()); return nil },
		sums: func() (out []uint64, _ error) {
			for b := h.Bytes(); len(b) > 0; b = b[r.config.Shape.BlockBytes:] {
				out = append(out, transport.RawSum(b[:r.config.Shape.BlockBytes]))
			}
			return out, nil
		},
	}
}

// launchSums returns the sums that the last, finished launch reported, of whole regions.
func (r *Bench) launchSums(entries int) []uint64 {
	out, pieces := make([]uint64, entries*r.config.Shape.Regions), int(r.config.Shape.pieces())
	for i, sum := range r.sums.Uint64s()[:len(out)*pieces] {
		out[i/pieces] += sum
	}
	return out
}

// verify runs a path once more, into cleared memory. The copied bytes, and the sums that a
// kernel reports, must match the source's bytes.
func (r *Bench) verify(w copyPath) error {
	if w.to != nil {
		if err := w.to.clear(); err != nil {
			return err
		}
	}
	if err := r.stream.Wait(); err != nil {
		return err
	}
	clear(r.sums.Uint64s())
	if err := w.work(); err != nil {
		return err
	}
	if err := r.stream.Wait(); err != nil {
		return err
	}
	if w.reportsSums {
		if err := r.compare("reports another sum than", r.launchSums(len(w.want)/r.config.Shape.Regions), w.want); err != nil {
			return err
		}
	}
	if w.to == nil {
		return nil
	}
	clear(r.sums.Uint64s())
	got, err := w.to.sums()
	if err != nil {
		return err
	}
	return r.compare("arrived with other bytes than", got, w.want)
}

// compare returns an error that names the first part that differs.
func (r *Bench) compare(how string, got, want []uint64) error {
	bad, first := 0, 0
	for i := range want {
		if got[i] != want[i] {
			if bad++; bad == 1 {
				first = i
			}
		}
	}
	if bad == 0 {
		return nil
	}
	n := r.config.Shape.Regions
	return fmt.Errorf("entry %d, region %d: %s its source has; %d of %d parts differ", first/n, first%n, how, bad, len(want))
}
