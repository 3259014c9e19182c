package tcp

import (
	"encoding/binary"
	"fmt"
	"io"
)

// The frames, with little-endian integers:
//
//	ask      receiver → source: 1 u8, 0 u24, count u32, block u32 × count
//	answer   source → receiver: 2 u8, 0 u24, count u32, the bytes of the blocks
//
// The blocks are written by blockwriter.go and read by blockreader.go.
const (
	headSize   = 8
	kindAsk    = 1
	kindAnswer = 2
)

func appendHead(dst []byte, kind byte, count int) []byte {
	return binary.LittleEndian.AppendUint32(append(dst, kind, 0, 0, 0), uint32(count))
}

// parseHead checks the head of a frame of one kind and returns its count.
func parseHead(head []byte, kind byte) (int, error) {
	count := binary.LittleEndian.Uint32(head[4:headSize])
	if head[0] != kind || head[1]|head[2]|head[3] != 0 || count > maxAsk {
		return 0, fmt.Errorf("received a frame of kind %d for %d blocks; want kind %d and at most %d blocks", head[0], count, kind, maxAsk)
	}
	return int(count), nil
}

// appendAsk appends an ask for at most maxAsk blocks.
func appendAsk(dst []byte, blocks []uint32) []byte {
	dst = appendHead(dst, kindAsk, len(blocks))
	for _, b := range blocks {
		dst = binary.LittleEndian.AppendUint32(dst, b)
	}
	return dst
}

// readAsk reads an ask for blocks of a pool of so many blocks, and appends the blocks to
// dst. buf has room for 4·maxAsk bytes, and for headSize.
func readAsk(r io.Reader, dst []uint32, buf []byte, poolBlocks int) ([]uint32, error) {
	if _, err := io.ReadFull(r, buf[:headSize]); err != nil {
		return dst, err
	}
	n, err := parseHead(buf, kindAsk)
	if err != nil {
		return dst, err
	}
	body := buf[:4*n]
	if _, err := io.ReadFull(r, body); err != nil {
		return dst, err
	}
	for i := range n {
		b := binary.LittleEndian.Uint32(body[4*i:])
		if int64(b) >= int64(poolBlocks) {
			return dst, fmt.Errorf("the receiver asked for block %d of a pool of %d", b, poolBlocks)
		}
		dst = append(dst, b)
	}
	return dst, nil
}
