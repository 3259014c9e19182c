package resources_test

import (
	"testing"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// magic is the shortest valid module.
const magic = "\x00asm\x01\x00\x00\x00"

func withModule(t testing.TB) resources.View {
	t.Helper()
	m, err := resources.NewModule([]byte(magic))
	if err != nil {
		t.Fatal(err)
	}
	v := fleet()
	v.Settings.Estimator, v.Settings.Module = resources.Wasm, m
	return v
}

// TestModule checks that a module adds one resource and changes no other.
func TestModule(t *testing.T) {
	v := withModule(t)
	s := build(t, v)
	if err := prove(t, s); err != nil {
		t.Fatal(err)
	}
	r := s.Get(resources.ExtensionType, resources.LengthFilter)
	if r == nil || r.Version != v.Settings.Module.Version() || s.Len(resources.ExtensionType) != 1 {
		t.Fatalf("the slot's content: %+v", r)
	}
	without := build(t, fleet())
	if !s.Equal(without, without.Types()...) {
		t.Error("the module changes other resources")
	}
}

// BenchmarkProveModule measures what the module adds to the proof of every table.
func BenchmarkProveModule(b *testing.B) {
	for name, size := range map[string]int{"none": 0, "2MiB": 2 << 20} {
		b.Run(name, func(b *testing.B) {
			v := fleet()
			if size > 0 {
				m, err := resources.NewModule(append([]byte(magic), make([]byte, size)...))
				if err != nil {
					b.Fatal(err)
				}
				v.Settings.Estimator, v.Settings.Module = resources.Wasm, m
			}
			for b.Loop() {
				s, err := resources.Build(v)
				if err == nil {
					err = resources.Prove(s)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestModuleRefused(t *testing.T) {
	for _, code := range [][]byte{nil, []byte("\x00asm"), []byte("\x00asm\x0d\x00\x01\x00"), append([]byte(magic), make([]byte, resources.MaxModule)...)} {
		if _, err := resources.NewModule(code); err == nil {
			t.Errorf("%d bytes: no error", len(code))
		}
	}
}
