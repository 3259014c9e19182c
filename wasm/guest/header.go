//go:build !wasip1

package guest

import _ "embed" // for Header

// Header is cascade_policy.h, for policies in C.
//
//go:embed c/cascade_policy.h
var Header []byte
