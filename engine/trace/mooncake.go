package trace

import (
	"encoding/json"
	"errors"

	"github.com/cascadeinfer/cascade/policies"
)

var mooncakeNames = fields{at: "timestamp", input: "input_length", output: "output_length", prefix: "hash_ids"}

// mooncakeLine is one line of the FAST'25 traces of kvcache-ai/Mooncake.
// Pointers distinguish a missing key from a zero.
type mooncakeLine struct {
	Timestamp *float64 `json:"timestamp"`
	Input     *int64   `json:"input_length"`
	Output    *int64   `json:"output_length"`
	HashIDs   []uint64 `json:"hash_ids"`
}

// decodeMooncake decodes the present line.
func (l *lineReader) decodeMooncake(line []byte) (Request, error) {
	var m mooncakeLine
	if err := json.Unmarshal(line, &m); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return Request{}, l.fail(wrong.Field, "%s does not fit; it must hold %s", wrong.Value, wrong.Type)
		}
		return Request{}, l.fail("", "%v; every line must be one JSON object", err)
	}
	for _, key := range [...]struct {
		name    string
		missing bool
	}{
		{mooncakeNames.at, m.Timestamp == nil},
		{mooncakeNames.input, m.Input == nil},
		{mooncakeNames.output, m.Output == nil},
	} {
		if key.missing {
			return Request{}, l.fail(key.name, "missing")
		}
	}
	at, err := milliseconds(*m.Timestamp)
	if err != nil {
		return Request{}, l.fail(mooncakeNames.at, "%v", err)
	}
	r := Request{At: at, Input: policies.Tokens(*m.Input), Output: policies.Tokens(*m.Output), Prefix: m.HashIDs}
	return r, l.check(r, mooncakeNames)
}
