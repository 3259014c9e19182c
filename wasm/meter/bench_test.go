package meter

import "testing"

// handSelect returns a module that selects the least of n records of 32 bytes, as a C compiler
// would compile it: one tight loop with a comparison.
func handSelect() *module {
	const n, i, best, least, load = 0, 1, 2, 3, 4
	return single([]byte{typeI32}, []byte{typeI32}, []byte{typeI32, typeI32, typeI64, typeI64},
		op(0x42, 1<<63-1), op(0x21, least),
		loop(
			op(0x20, i), i32(5), op(0x74), op(0x29, 3, 0), op(0x22, load),
			op(0x20, least), op(0x53),
			cond([]*ins{op(0x20, load), op(0x21, least), op(0x20, i), op(0x21, best)}, nil),
			op(0x20, i), i32(1), op(0x6a), op(0x22, i), op(0x20, n), op(0x49), op(0x0d, 0)),
		op(0x20, best))
}

func BenchmarkInstrument(b *testing.B) {
	for name, code := range map[string][]byte{"go": goGuest(b), "hand": handSelect().encode()} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(code)))
			for b.Loop() {
				if _, _, err := Instrument(code, Config{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
