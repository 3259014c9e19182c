package transport

import (
	"errors"
	"fmt"
	"hash/crc32"
)

// Region is the place of one part of every block: the part of block b begins at
// Offset + b·Stride and has Bytes bytes.
type Region struct{ Offset, Stride, Bytes int64 }

// Layout is the shape of a pool. Two pools can exchange blocks if their regions have
// equal Bytes, one by one; offsets, strides and counts may differ.
type Layout struct {
	Regions  []Region
	Blocks   int      // numbered from 0
	Checksum Checksum // of its blocks
}

// Checksum is a kind of checksum of the bytes of a region. A plan has checksums of its
// source's kind, whatever the target's kind is: one of the two may be on a GPU.
type Checksum uint32

const (
	// CRC32 is crc32 (IEEE), for pools that processors write.
	CRC32 Checksum = iota
	// Multiply is the checksum of RawSum and FoldSum, for pools on a GPU, which has no
	// instruction for crc32.
	Multiply
)

func (s Checksum) String() string {
	switch s {
	case CRC32:
		return "crc32"
	case Multiply:
		return "multiply"
	}
	return fmt.Sprintf("checksum %d", uint32(s))
}

// Of returns the checksum of b.
func (s Checksum) Of(b []byte) uint32 {
	if s == Multiply {
		return FoldSum(RawSum(b), int64(len(b)))
	}
	return crc32.ChecksumIEEE(b)
}

// BlockBytes returns the size of a block, all regions together.
func (l Layout) BlockBytes() int64 {
	n := int64(0)
	for _, r := range l.Regions {
		n += r.Bytes
	}
	return n
}

// Packed returns the layout of n blocks one after the other, all regions of one block
// before the next block, as Device.Gather writes them.
func (l Layout) Packed(n int) Layout {
	out, size, at := Layout{Blocks: n, Checksum: l.Checksum}, l.BlockBytes(), int64(0)
	for _, r := range l.Regions {
		out.Regions = append(out.Regions, Region{Offset: at, Stride: size, Bytes: r.Bytes})
		at += r.Bytes
	}
	return out
}

// MinSize returns the size of the smallest memory that the layout fits into.
func (l Layout) MinSize() int64 {
	size := int64(0)
	for _, r := range l.Regions {
		size = max(size, r.Offset+int64(l.Blocks-1)*r.Stride+r.Bytes)
	}
	return size
}

// CheckCompatible returns why two pools cannot exchange blocks, or nil: their regions
// differ in number or size. The kinds of their checksums may differ.
func (l Layout) CheckCompatible(other Layout) error {
	if len(l.Regions) != len(other.Regions) {
		return fmt.Errorf("layout: blocks of %d regions do not match blocks of %d", len(l.Regions), len(other.Regions))
	}
	for i, r := range l.Regions {
		if r.Bytes != other.Regions[i].Bytes {
			return fmt.Errorf("layout: region %d of %d bytes does not match one of %d", i, r.Bytes, other.Regions[i].Bytes)
		}
	}
	return nil
}

// Validate returns the first reason why the layout does not describe a memory of that
// size, or nil: counts out of range, or regions that leave the memory or overlap their
// own next block.
func (l Layout) Validate(size int64) error {
	if l.Blocks <= 0 || len(l.Regions) == 0 {
		return errors.New("layout: blocks and regions must be positive")
	}
	for i, r := range l.Regions {
		if r.Offset < 0 || r.Bytes <= 0 || r.Stride < r.Bytes {
			return fmt.Errorf("layout: region %d: offset %d, stride %d, %d bytes: want offset ≥ 0 and stride ≥ bytes > 0", i, r.Offset, r.Stride, r.Bytes)
		}
		if last := int64(l.Blocks - 1); r.Bytes > size || r.Offset > size-r.Bytes || r.Stride > 0 && last > (size-r.Bytes-r.Offset)/r.Stride {
			return fmt.Errorf("layout: region %d of block %d ends after the memory's %d bytes", i, l.Blocks-1, size)
		}
	}
	return nil
}
