package abi

// configure: passes the configuration to a new instance.
//
// The configuration is in aux; the policy's author defines its format. There are no
// arguments, records or output. The guest returns OK, or Failed if it refuses the
// configuration. A module that does not export the function has no configuration.

// EncodeConfigureCall writes a frame into an arena and returns its length; with
// ErrShort, the length that the frame needs.
func EncodeConfigureCall(arena []byte, c Call, config []byte) (int, error) {
	p, n, err := frameShape{kind: Configure, aux: len(config)}.writeTo(arena, c)
	if err == nil {
		copy(p.aux, config)
	}
	return n, err
}

// DecodeConfigureCall returns the configuration, which shares the frame's memory.
func DecodeConfigureCall(frame []byte) ([]byte, Status) {
	var p frameAreas
	s := p.parse(frame, Configure, 0, 0)
	return p.aux, s
}

// DecodeConfigureResult returns the status of a result as an error, nil for OK.
func DecodeConfigureResult(result uint64) error {
	if s, _ := Unpack(result); s != OK {
		return s
	}
	return nil
}

// ConfigureCodec is the codec of the kind.
var ConfigureCodec = Codec[[]byte, struct{}]{
	Kind: Configure, EncodeCall: EncodeConfigureCall, DecodeCall: DecodeConfigureCall,
	EncodeResult: func([]byte, []byte, struct{}) (uint64, error) { return Result(OK, 0), nil },
	DecodeResult: func(_ []byte, result uint64, _ []byte) (struct{}, error) {
		return struct{}{}, DecodeConfigureResult(result)
	},
}
