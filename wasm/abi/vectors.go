//go:build !wasip1

package abi

import "embed"

// KindOf returns the kind of a frame, NumKinds if it is not a frame of a known kind.
func KindOf(frame []byte) Kind {
	if len(frame) < HeaderSize || u32(frame) != Magic {
		return NumKinds
	}
	return min(NumKinds, Kind(u16(frame[6:])))
}

// OutputArea returns the space for the output in a frame, nil if it lies outside the frame.
func OutputArea(frame []byte) []byte {
	area, _ := subframe(frame, u32(frame[56:]), u32(frame[60:]))
	return area
}

// Vectors holds the golden vectors, testdata/NAME.hex: frames as hosts write them. Modules carry none.
//
//go:embed testdata/*.hex
var Vectors embed.FS
