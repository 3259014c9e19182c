package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// Read returns the content of the file at path. The error names the file, also
// where it is larger than limit bytes.
func Read(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := ReadAll(f, limit)
	if err != nil {
		var named *os.PathError
		if errors.As(err, &named) {
			return nil, err
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, nil
}

// Decode returns what decode reads from the file at path. The error names the file.
func Decode[T any](path string, decode func(io.Reader) (T, error)) (T, error) {
	var none T
	f, err := os.Open(path)
	if err != nil {
		return none, err
	}
	defer f.Close()
	value, err := decode(f)
	if err != nil {
		return none, fmt.Errorf("%s: %w", path, err)
	}
	return value, nil
}

// ReadAll reads r to its end. More than limit bytes are an error.
func ReadAll(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("larger than %s", formatSize(limit))
	}
	return data, nil
}

// formatSize formats a limit in the largest unit that divides it.
func formatSize(n int64) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}
