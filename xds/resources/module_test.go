package resources_test

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	wasmfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

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
	v := fleet()
	v.Settings.Estimator = resources.Wasm
	if _, err := resources.Build(v); err == nil || !strings.Contains(err.Error(), "module") {
		t.Errorf("wasm without a module: %v", err)
	}
	v = withModule(t)
	v.Settings.Estimator = resources.ContentLength
	if _, err := resources.Build(v); err == nil || !strings.Contains(err.Error(), "module") {
		t.Errorf("content-length with a module: %v", err)
	}
}

// TestProveModule breaks the slot's content in every way that would make requests fail.
func TestProveModule(t *testing.T) {
	good := build(t, withModule(t))
	for name, c := range map[string]struct {
		edit func(*corev3.TypedExtensionConfig, *wasmv3.PluginConfig)
		want string
	}{
		"fails closed": {func(_ *corev3.TypedExtensionConfig, p *wasmv3.PluginConfig) {
			p.FailurePolicy = wasmv3.FailurePolicy_FAIL_RELOAD
		}, "fail open"},
		"holds all": {func(_ *corev3.TypedExtensionConfig, p *wasmv3.PluginConfig) { p.AllowOnHeadersStopIteration = nil }, "stop headers"},
		"fetched": {func(_ *corev3.TypedExtensionConfig, p *wasmv3.PluginConfig) {
			p.GetVmConfig().Code = &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Remote{Remote: &corev3.RemoteDataSource{
				HttpUri: &corev3.HttpUri{Uri: "http://x", HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: "x"}, Timeout: durationpb.New(1)}, Sha256: "00",
			}}}
		}, "contain its code"},
		"may all": {func(_ *corev3.TypedExtensionConfig, p *wasmv3.PluginConfig) {
			p.GetVmConfig().CapabilityRestrictionConfig = nil
		}, "allowed capabilities"},
		"precompiled": {func(_ *corev3.TypedExtensionConfig, p *wasmv3.PluginConfig) { p.GetVmConfig().AllowPrecompiled = true }, "precompiled"},
		"other slot":  {func(c *corev3.TypedExtensionConfig, _ *wasmv3.PluginConfig) { c.Name = "other" }, "only"},
	} {
		t.Run(name, func(t *testing.T) {
			old := good.Get(resources.ExtensionType, resources.LengthFilter)
			x, f := new(corev3.TypedExtensionConfig), new(wasmfilterv3.Wasm)
			if err := old.Decode(x); err != nil {
				t.Fatal(err)
			}
			if err := x.TypedConfig.UnmarshalTo(f); err != nil {
				t.Fatal(err)
			}
			c.edit(x, f.Config)
			var err error
			if x.TypedConfig, err = anypb.New(f); err != nil {
				t.Fatal(err)
			}
			r, err := resources.Encode(resources.ExtensionType, x.Name, x)
			if err != nil {
				t.Fatal(err)
			}
			r.Unlisted = true
			one, err := resources.NewSet(r)
			if err != nil {
				t.Fatal(err)
			}
			if err := prove(t, good.WithTypes(one, resources.ExtensionType)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
