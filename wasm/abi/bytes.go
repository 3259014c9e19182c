package abi

import (
	"math"
	"unsafe"
)

// Each load and store below compiles to one instruction on every target, wasm
// included. encoding/binary would link package reflect into every guest.

func u16(b []byte) uint16 { return uint16(b[0]) | uint16(b[1])<<8 }

func u32(b []byte) uint32 {
	_ = b[3]
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
}

func u64(b []byte) uint64 {
	_ = b[7]
	return uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 |
		uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56
}

func f64(b []byte) float64 { return math.Float64frombits(u64(b)) }

func put16(b []byte, v uint16) { b[0], b[1] = byte(v), byte(v>>8) }

func put32(b []byte, v uint32) {
	_ = b[3]
	b[0], b[1], b[2], b[3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
}

func put64(b []byte, v uint64) {
	_ = b[7]
	b[0], b[1], b[2], b[3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
	b[4], b[5], b[6], b[7] = byte(v>>32), byte(v>>40), byte(v>>48), byte(v>>56)
}

func putFloat(b []byte, v float64) { put64(b, math.Float64bits(v)) }

// text returns the string at an "off, len" pair, and whether it lies in aux. The
// string shares aux's memory and is valid as long as the frame is. The pair is one
// number so that the compiler inlines the function: in Go's WebAssembly a call costs
// as much as its body.
func text(pair uint64, aux []byte) (string, bool) {
	off, n := uint64(uint32(pair)), pair>>32
	if off+n > uint64(len(aux)) {
		return "", false
	}
	b := aux[off : off+n]
	return unsafe.String(unsafe.SliceData(b), len(b)), true
}

// textWriter appends strings to aux.
type textWriter struct {
	aux []byte
	at  int
}

// put appends a string, and writes its offset and length into pair.
func (t *textWriter) put(pair []byte, s string) {
	put64(pair, uint64(t.at)|uint64(len(s))<<32)
	// Names are short: two overlapping stores cost a fraction of a call to copy.
	dst := t.aux[t.at:]
	if n := len(s); n >= 8 && n <= 16 && n <= len(dst) {
		put64(dst, str64(s))
		put64(dst[n-8:], str64(s[n-8:]))
		t.at += n
		return
	}
	t.at += copy(dst, s)
}

// str64 is u64 for strings.
func str64(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// flagIf returns v if on is true, else 0.
func flagIf(on bool, v uint32) uint32 {
	if on {
		return v
	}
	return 0
}

func isFinite(x float64) bool { return x-x == 0 }
