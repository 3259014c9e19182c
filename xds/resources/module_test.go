package resources_test

import (
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// magic is the shortest valid module.
const magic = "\x00asm\x01\x00\x00\x00"

func withModule(t testing.TB) resources.View {
	t.Helper()
	m := testkit.Must(resources.NewModule([]byte(magic), 0))
	v := fleet()
	v.Settings.Estimator, v.Settings.Module = resources.Wasm, m
	return v
}

// TestModule checks that a module adds one resource and changes no other.
func TestModule(t *testing.T) {
	v := withModule(t)
	s := build(t, v)
	testkit.NoError(t, prove(t, s))
	r := s.Get(resources.ExtensionType, resources.LengthFilter)
	if r == nil || r.Version != v.Settings.Module.Version() || s.Len(resources.ExtensionType) != 1 {
		t.Fatalf("the slot's content: %+v", r)
	}
	without := build(t, fleet())
	if !s.Equal(without, without.Types()...) {
		t.Error("the module changes other resources")
	}
}

func TestModuleRefused(t *testing.T) {
	for _, code := range [][]byte{nil, []byte("\x00asm"), []byte("\x00asm\x0d\x00\x01\x00"), append([]byte(magic), make([]byte, resources.MaxModule)...)} {
		if _, err := resources.NewModule(code, 0); err == nil {
			t.Errorf("%d bytes: no error", len(code))
		}
	}
}
