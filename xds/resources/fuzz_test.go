package resources_test

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// FuzzMetadata decodes arbitrary metadata of virtual hosts: it never panics, and returns no invalid model.
func FuzzMetadata(f *testing.F) {
	s := build(f, twoModels())
	rc := message(f, s.Get(resources.RouteType, resources.RouteName)).(*routev3.RouteConfiguration)
	for _, vh := range rc.VirtualHosts {
		f.Add(testkit.Must(proto.Marshal(vh.Metadata)))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		md := new(corev3.Metadata)
		if proto.Unmarshal(body, md) != nil {
			return
		}
		if all, err := resources.ReadLengthMeta(md); err == nil {
			for _, m := range all {
				if m.Model == "" || m.BytesPerToken != m.BytesPerToken.Clamp() {
					t.Errorf("read %+v", m)
				}
			}
		}
	})
}

// FuzzProve proves a set in which one resource was replaced by arbitrary bytes.
func FuzzProve(f *testing.F) {
	s := build(f, fleet())
	types := s.Types()
	for i, typ := range types {
		f.Add(uint8(i), s.All(typ)[0].Body)
	}
	f.Fuzz(func(t *testing.T, which uint8, body []byte) {
		typ := types[int(which)%len(types)]
		bad := &resources.Resource{Type: typ, Name: s.All(typ)[0].Name, Version: resources.Version(body), Body: body}
		all := []*resources.Resource{bad}
		for _, ty := range types {
			for _, r := range s.All(ty) {
				if ty != typ || r.Name != bad.Name {
					all = append(all, r)
				}
			}
		}
		set := testkit.Must(resources.NewSet(all...))
		_ = prove(t, set) // an error or none, never a panic
	})
}
