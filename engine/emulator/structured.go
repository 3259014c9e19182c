package emulator

import (
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// Bounds of an answer that a schema describes.
const (
	maxSchemaDepth = 32      // references count
	maxSkeleton    = 1 << 16 // bytes of the answer without its text
)

// skeleton is the JSON around an answer's text: the smallest value that a schema allows, with the text in its first
// string. As in a real engine the text is within the schema, and as here everywhere it has no meaning.
type skeleton struct {
	before, after []byte
	hole          bool // the text stands between the two, as part of a JSON string; else it is dropped
	begun         bool // before was written
}

// jsonObject is the skeleton of an object without a schema.
func jsonObject() *skeleton {
	return &skeleton{before: []byte(`{"text":"`), after: []byte(`"}`), hole: true}
}

// newSkeleton returns the skeleton of a schema's answers. at names the field with the schema in errors.
func newSkeleton(at string, schema gjson.Result) (*skeleton, *apiError) {
	k := new(skeleton)
	if !schema.IsObject() {
		return nil, invalid(at, "%s must be a JSON schema, an object", at)
	}
	if bad := k.value(at, schema, schema, 0); bad != nil {
		return nil, bad
	}
	return k, nil
}

// add appends to the part that is written at present.
func (k *skeleton) add(s string) {
	if k.hole {
		k.after = append(k.after, s...)
	} else {
		k.before = append(k.before, s...)
	}
}

// value adds the smallest value of a schema.
func (k *skeleton) value(at string, schema, root gjson.Result, depth int) *apiError {
	if depth > maxSchemaDepth || len(k.before)+len(k.after) > maxSkeleton {
		return invalid(at, "%s: its values are larger, or nested deeper, than this engine makes", at)
	}
	for _, keyword := range [...]string{"pattern", "format", "minLength", "maxLength", "not", "if"} {
		if v := schema.Get(keyword); v.Exists() {
			return invalid(at, "%s: %s is not supported by this engine", at, keyword)
		}
	}
	if ref := schema.Get("$ref"); ref.Exists() {
		target := root
		for _, part := range strings.Split(strings.TrimPrefix(ref.Str, "#/"), "/") {
			target = target.Get(gjson.Escape(part))
		}
		if !strings.HasPrefix(ref.Str, "#/") || !target.IsObject() {
			return invalid(at, "%s: $ref %q is not in the schema", at, ref.Str)
		}
		return k.value(at, target, root, depth+1)
	}
	for _, choice := range [...]string{"anyOf.0", "oneOf.0", "allOf.0"} {
		if v := schema.Get(choice); v.IsObject() {
			return k.value(at, v, root, depth+1)
		}
	}
	for _, fixed := range [...]string{"const", "enum.0"} {
		if v := schema.Get(fixed); v.Exists() {
			k.add(v.Raw)
			return nil
		}
	}
	kind := schema.Get("type")
	if kind.IsArray() {
		kind = kind.Get("0")
	}
	switch {
	case kind.Str == "object" || schema.Get("properties").IsObject():
		return k.object(at, schema, root, depth)
	case kind.Str == "array":
		return k.array(at, schema, root, depth)
	case kind.Str == "integer" || kind.Str == "number":
		k.add(number(schema))
	case kind.Str == "boolean":
		k.add("false")
	case kind.Str == "null":
		k.add("null")
	default: // a string, or anything
		k.add(`"`)
		k.hole = true
		k.add(`"`)
	}
	return nil
}

func (k *skeleton) object(at string, schema, root gjson.Result, depth int) (bad *apiError) {
	k.add("{")
	separator := ""
	schema.Get("properties").ForEach(func(name, v gjson.Result) bool {
		k.add(separator + string(quote(nil, name.Str)) + ":")
		separator = ","
		bad = k.value(at, v, root, depth+1)
		return bad == nil
	})
	k.add("}")
	return bad
}

func (k *skeleton) array(at string, schema, root gjson.Result, depth int) *apiError {
	k.add("[")
	for i := range min(schema.Get("minItems").Int(), maxSkeleton) {
		if i > 0 {
			k.add(",")
		}
		if bad := k.value(at, schema.Get("items"), root, depth+1); bad != nil {
			return bad
		}
	}
	k.add("]")
	return nil
}

// number returns the least number of a schema, 0 if it has no minimum.
func number(schema gjson.Result) string {
	if v := schema.Get("minimum"); v.Type == gjson.Number {
		return v.Raw
	}
	if v := schema.Get("exclusiveMinimum"); v.Type == gjson.Number {
		return strconv.FormatInt(v.Int()+1, 10)
	}
	return "0"
}

// wrap appends the answer's next text within the skeleton; ended says that it is the last. A nil skeleton changes
// nothing. A text that reached its limit is closed, too, where a real engine cuts the JSON.
func (k *skeleton) wrap(dst, text []byte, ended bool) []byte {
	if k == nil {
		return append(dst, text...)
	}
	if !k.begun {
		dst, k.begun = append(dst, k.before...), true
	}
	if k.hole {
		quoted := quote(nil, text)
		dst = append(dst, quoted[1:len(quoted)-1]...)
	}
	if ended {
		dst = append(dst, k.after...)
	}
	return dst
}
