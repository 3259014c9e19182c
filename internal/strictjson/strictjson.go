// Package strictjson decodes JSON of which nothing may be ignored: files that people write, and those of other versions
// of the program.
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
