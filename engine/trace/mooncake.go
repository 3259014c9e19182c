package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"

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
			return Request{}, l.fail(wrong.Field, "%s does not fit; it must be %s", wrong.Value, jsonNoun(wrong.Type))
		}
		return Request{}, l.fail(keyOf(err, line), "%v; every line must be one JSON object", err)
	}
	if i := nullID(line); i >= 0 {
		return Request{}, l.fail(mooncakeNames.prefix, "id %d is null; it must be %s", i, jsonNoun(reflect.TypeFor[uint64]()))
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
			return Request{}, l.fail(key.name, "missing; a line has timestamp (ms), input_length and output_length (tokens)")
		}
	}
	at, err := milliseconds(*m.Timestamp)
	if err != nil {
		return Request{}, l.fail(mooncakeNames.at, "%v", err)
	}
	r := Request{At: at, Input: policies.Tokens(*m.Input), Output: policies.Tokens(*m.Output), Prefix: m.HashIDs}
	return r, l.check(r, mooncakeNames)
}

// jsonNoun returns what a value that is decoded into a type has to be in a file.
func jsonNoun(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Float64:
		return "a number"
	case reflect.Int64:
		return "a whole number"
	case reflect.Uint64:
		return "a whole number of 64 bits, not negative"
	case reflect.Slice:
		return "a list of whole numbers"
	}
	return "an object"
}

// keyOf returns the key whose value is no JSON, such as NaN; "" if the error is elsewhere.
func keyOf(err error, line []byte) string {
	var wrong *json.SyntaxError
	if !errors.As(err, &wrong) || wrong.Offset < 1 || wrong.Offset > int64(len(line)) {
		return ""
	}
	before := line[:wrong.Offset-1]
	colon := bytes.LastIndexByte(before, ':')
	if colon < 0 {
		return ""
	}
	value := bytes.TrimSpace(before[colon+1:])
	if bytes.ContainsAny(value, "]}") || bytes.ContainsRune(value, ',') && !bytes.HasPrefix(value, []byte("[")) {
		return "" // it has ended
	}
	key := bytes.Split(before[:colon], []byte(`"`))
	if len(key) < 3 {
		return ""
	}
	return string(key[len(key)-2])
}

// nullID returns the index of the first prefix id that is null, which package json takes for 0; −1 for none.
func nullID(line []byte) int {
	if !bytes.Contains(line, []byte("null")) {
		return -1
	}
	var m struct {
		HashIDs []*uint64 `json:"hash_ids"`
	}
	if json.Unmarshal(line, &m) != nil {
		return -1
	}
	return slices.Index(m.HashIDs, nil)
}
