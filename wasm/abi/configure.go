package abi

// Configure gives a new instance its configuration: bytes that the policy's
// author defines, as aux. It has no arguments, records or output. The guest
// answers OK, or Failed when it cannot work with it; an instance that does not
// export the function has no configuration.

// PutConfigure writes a frame into an arena and returns its length; with
// ErrShort, the length it needs.
func PutConfigure(arena []byte, c Call, config []byte) (int, error) {
	p, n, err := shape{kind: Configure, aux: len(config)}.lay(arena, c)
	if err == nil {
		copy(p.aux, config)
	}
	return n, err
}

// GetConfigure returns the configuration; it shares the frame's memory.
func GetConfigure(frame []byte) ([]byte, Status) {
	var p parts
	s := p.open(frame, Configure, 0, 0)
	return p.aux, s
}

// TakeConfigure returns the error of a result, if it is one.
func TakeConfigure(result uint64) error {
	if s, _ := Unpack(result); s != OK {
		return s
	}
	return nil
}
