package atomicfile

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
)

// GunzipReader returns a reader of what r contains, unpacked if it begins as gzip does, whatever the file's name. The caller
// bounds what it reads: a small file may be large unpacked.
func GunzipReader(r io.Reader) (*bufio.Reader, error) {
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
