package endpointpicker

import (
	"github.com/cascadeinfer/cascade/internal/httpserver"
	"github.com/cascadeinfer/cascade/policies/length"
)

// pieceSize is the size up to which pieces of a held body are joined: small pieces would
// cost more memory than their bytes.
const pieceSize = 64 << 10

// heldBody is a request body that is read until its length and model are known.
type heldBody struct {
	scanner length.Scanner
	pieces  [][]byte // nil where the gateway keeps the body itself
	size    int64    // of all pieces so far
	share   httpserver.Share
}

// grow accounts for n more bytes. It reports false if the budget has no room for them.
func (b *heldBody) grow(n int) bool {
	b.size += int64(n)
	return b.share.Resize(b.size)
}

// keep holds a piece, which the caller must not change later, to be sent back.
func (b *heldBody) keep(piece []byte) {
	if n := len(b.pieces); n > 0 && len(b.pieces[n-1])+len(piece) <= pieceSize {
		b.pieces[n-1] = append(b.pieces[n-1], piece...)
		return
	}
	if len(piece) > 0 {
		b.pieces = append(b.pieces, piece)
	}
}
