// Package wasm holds the files that authors of policies get: the golden vectors
// of cascade-policy/1 and the header for C. It is here because a program can
// embed files of folders below its own only; it holds no code.
package wasm

import "embed"

// Vectors holds abi/testdata/NAME.hex: frames as hosts write them, see package
// abi.
//
//go:embed abi/testdata/*.hex
var Vectors embed.FS

// Header is cascade_policy.h, see package guest/c.
//
//go:embed guest/c/cascade_policy.h
var Header []byte
