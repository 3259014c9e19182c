//go:build !wasip1

package abi

import "embed"

// Vectors holds the golden vectors, testdata/NAME.hex: frames as hosts write them. Modules carry none.
//
//go:embed testdata/*.hex
var Vectors embed.FS
