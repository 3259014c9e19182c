package lengthfilter

import (
	"errors"
	"math"
)

// metadataKey is the key of the filter metadata that lists a virtual host's models.
const metadataKey = "cascade.length.v1"

var errMetadata = errors.New("virtual host metadata: malformed")

// decodeMetadata returns the models in an encoded envoy.config.core.v3.Metadata:
//
//	filter_metadata: {"cascade.length.v1": {model, bytes_per_token, adapters: […]}}
//	filter_metadata: {"cascade.length.v1": {models: [{model, …}, …]}}
//
// Without that key there are none. It decodes Protocol Buffers by itself, because a
// library would double the size of the module.
func decodeMetadata(data []byte) ([]Model, error) {
	var models []Model
	err := entries(data, func(key string, value []byte) error {
		if key != metadataKey {
			return nil
		}
		models = models[:0] // of a repeated key the last one counts
		var one Model
		err := entries(value, func(key string, value []byte) error {
			if key == "models" {
				return items(value, func(value []byte) error {
					s, err := field(value, structValue)
					if err != nil || s == nil {
						return err
					}
					var m Model
					if err := entries(s, m.set); err != nil {
						return err
					}
					models = append(models, m)
					return nil
				})
			}
			return one.set(key, value)
		})
		if one.Name != "" {
			models = append(models, one)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, m := range models {
		if err := m.validate(); err != nil {
			return nil, err
		}
	}
	return models, nil
}

// set sets a field of the model from its google.protobuf.Value.
func (m *Model) set(key string, value []byte) error {
	switch key {
	case "model":
		s, err := field(value, stringValue)
		m.Name = string(s)
		return err
	case "bytes_per_token":
		n, err := field(value, numberValue)
		if err == nil && len(n) == 8 {
			m.BytesPerToken = math.Float64frombits(littleEndian(n))
		}
		return err
	case "adapters":
		return items(value, func(value []byte) error {
			s, err := field(value, stringValue)
			if len(s) > 0 {
				m.Adapters = append(m.Adapters, string(s))
			}
			return err
		})
	}
	return nil
}

// Fields of google.protobuf.Value.
const (
	numberValue = 2
	stringValue = 3
	structValue = 5
	listValue   = 6
)

// entries calls f for every entry of a message whose field 1 is a map with string keys,
// such as Metadata and Struct.
func entries(data []byte, f func(key string, value []byte) error) error {
	return each(data, func(number uint64, entry []byte) error {
		if number != 1 {
			return nil
		}
		key, err := field(entry, 1)
		if err != nil {
			return err
		}
		value, err := field(entry, 2)
		if err != nil {
			return err
		}
		return f(string(key), value)
	})
}

// items calls f for every value of a Value that is a list.
func items(value []byte, f func(value []byte) error) error {
	list, err := field(value, listValue)
	if err != nil {
		return err
	}
	return each(list, func(number uint64, item []byte) error {
		if number != 1 {
			return nil
		}
		return f(item)
	})
}

// field returns the content of the last field with a number, nil if there is none.
func field(data []byte, want uint64) (content []byte, err error) {
	err = each(data, func(number uint64, c []byte) error {
		if number == want {
			content = c
		}
		return nil
	})
	return content, err
}

// Wire types.
const (
	wireVarint = 0
	wire64     = 1
	wireBytes  = 2
	wire32     = 5
)

// each calls f for every field of an encoded message with the bytes of its content. It
// skips varint fields, which are not needed here.
func each(data []byte, f func(number uint64, content []byte) error) error {
	for len(data) > 0 {
		tag, n := uvarint(data)
		if n <= 0 || tag>>3 == 0 {
			return errMetadata
		}
		data = data[n:]
		var size uint64
		switch tag & 7 {
		case wireVarint:
			_, n := uvarint(data)
			if n <= 0 {
				return errMetadata
			}
			data = data[n:]
			continue
		case wire64:
			size = 8
		case wire32:
			size = 4
		case wireBytes:
			if size, n = uvarint(data); n <= 0 {
				return errMetadata
			}
			data = data[n:]
		default:
			return errMetadata
		}
		if size > uint64(len(data)) {
			return errMetadata
		}
		if err := f(tag>>3, data[:size]); err != nil {
			return err
		}
		data = data[size:]
	}
	return nil
}

// uvarint decodes a number and returns the size of its encoding, 0 if it is malformed.
// encoding/binary has the same function, but links package reflect.
func uvarint(data []byte) (x uint64, n int) {
	for i, b := range data[:min(len(data), 10)] {
		x |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			return x, i + 1
		}
	}
	return 0, 0
}

func littleEndian(data []byte) (x uint64) {
	for i, b := range data {
		x |= uint64(b) << (8 * i)
	}
	return x
}
