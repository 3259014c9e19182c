// Package strictjson decodes JSON and refuses unknown fields and trailing data. It is for files that people write, or
// that another version of the program has written.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Unmarshal is json.Unmarshal, but refuses fields that into does not have, and says where the syntax is wrong.
func Unmarshal(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("byte %d: %w", syntax.Offset, err)
	}
	end := d.InputOffset()
	if _, more := d.Token(); err == nil && !errors.Is(more, io.EOF) {
		err = fmt.Errorf("byte %d: data after the JSON value", end)
	}
	return err
}
