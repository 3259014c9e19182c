package transport_test

import (
	"bytes"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/transport"
)

func TestLayoutValidate(t *testing.T) {
	region := func(offset, stride, bytes int64) transport.Layout {
		return transport.Layout{Blocks: 4, Regions: []transport.Region{{Offset: 8, Stride: 8, Bytes: 8}, {Offset: offset, Stride: stride, Bytes: bytes}}}
	}
	for _, c := range []struct {
		name   string
		layout transport.Layout
		valid  bool
	}{
		{"to the last byte", region(64, 10, 6), true}, // ends at 64 + 3·10 + 6
		{"one byte more", region(64, 10, 7), false},
		{"one offset more", region(65, 10, 6), false},
		{"negative offset", region(-1, 10, 6), false},
		{"no bytes", region(0, 10, 0), false},
		{"blocks that overlap", region(0, 5, 6), false},
		{"offset near the end of numbers", region(math.MaxInt64-3, 10, 6), false},
		{"stride near the end of numbers", region(0, math.MaxInt64/2, 6), false},
		{"bytes near the end of numbers", region(0, math.MaxInt64, math.MaxInt64), false},
		{"no blocks", transport.Layout{Regions: []transport.Region{{Stride: 1, Bytes: 1}}}, false},
		{"no regions", transport.Layout{Blocks: 1}, false},
	} {
		if err := c.layout.Validate(100); (err == nil) != c.valid {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestCopyAndChecksum compares it with copy and crc32, for several sizes and cuts.
func TestCopyAndChecksum(t *testing.T) {
	src := make([]byte, 300_000)
	for i := range src {
		src[i] = byte(rand.IntN(256))
	}
	for _, n := range []int{0, 1, 65535, 65536, 65537, 131072, len(src)} {
		dst := make([]byte, n)
		cut := n / 3
		sum := transport.CopyAndChecksum(dst[:cut], src[:cut], 0)
		sum = transport.CopyAndChecksum(dst[cut:], src[cut:n], sum)
		if !bytes.Equal(dst, src[:n]) || sum != crc32.ChecksumIEEE(src[:n]) {
			t.Errorf("%d bytes: sum %x", n, sum)
		}
	}
}

func TestMemoryIsUnmappedOnce(t *testing.T) {
	unmapped := 0
	m := &transport.Memory{Unmap: func() { unmapped++ }}
	for range 2 {
		if !m.Hold() {
			t.Fatal("Hold of an open memory reports false")
		}
	}
	m.Release()
	m.Close()
	m.Close()
	if m.Hold() || unmapped != 0 {
		t.Errorf("closed while held: unmapped %d times", unmapped)
	}
	m.Release()
	m.Close()
	if unmapped != 1 {
		t.Errorf("unmapped %d times", unmapped)
	}
	defer func() {
		if r := recover(); r == nil || !strings.Contains(r.(string), "internal error") {
			t.Errorf("Release without Hold: %v", r)
		}
	}()
	m.Release()
}

// TestCatchFaultPassesOtherPanics checks that only memory faults become errors.
func TestCatchFaultPassesOtherPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("CatchFault recovered a panic that is not a memory fault")
		}
	}()
	transport.CatchFault(func() error { panic("internal error: of the test") })
}
