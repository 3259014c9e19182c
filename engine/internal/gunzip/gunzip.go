// Package gunzip reads files that may be compressed with gzip, whatever their names end with.
package gunzip

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
)

// NewReader returns a reader of what r contains, unpacked if it begins as gzip does. The caller
// bounds what it reads: a small file may be large unpacked.
func NewReader(r io.Reader) (*bufio.Reader, error) {
	buffered := bufio.NewReader(r)
	if magic, _ := buffered.Peek(2); !bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		return buffered, nil // an error comes back with the first read
	}
	unzipped, err := gzip.NewReader(buffered)
	if err != nil {
		return nil, fmt.Errorf("read the gzip header: %w", err)
	}
	return bufio.NewReader(unzipped), nil
}
