package server

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

var codec = sharingCodec{encoding.GetCodecV2("proto")}

// randomAny returns an Any of a size near the bounds of the codec; sometimes nil.
func randomAny(rng *rand.Rand) *anypb.Any {
	sizes := []int{0, 1, minShared - 1, minShared, minShared + 1, minSharing, 5 * minSharing}
	n := rng.IntN(len(sizes) + 1)
	if n == len(sizes) {
		return nil
	}
	a := &anypb.Any{TypeUrl: "type.googleapis.com/t", Value: bytes.Repeat([]byte{byte(rng.Uint32())}, sizes[n])}
	addUnknown(rng, a)
	return a
}

// addUnknown adds a field of a later version to some messages.
func addUnknown(rng *rand.Rand, m proto.Message) {
	if rng.IntN(4) == 0 {
		m.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 1000, protowire.BytesType), "later"))
	}
}

func randomDelta(rng *rand.Rand) *discoveryv3.DeltaDiscoveryResponse {
	m := &discoveryv3.DeltaDiscoveryResponse{SystemVersionInfo: "v", TypeUrl: "t", Nonce: fmt.Sprint(rng.Uint32()), RemovedResources: []string{"a", "b"}, ControlPlane: &corev3.ControlPlane{Identifier: "c"}}
	for i := range rng.IntN(20) {
		r := &discoveryv3.Resource{Name: fmt.Sprint("r", i), Version: "1", Aliases: []string{"x", "y"}, Resource: randomAny(rng)}
		if rng.IntN(2) == 0 {
			r.Ttl, r.CacheControl = durationpb.New(time.Second), &discoveryv3.Resource_CacheControl{DoNotCache: true}
		}
		addUnknown(rng, r)
		m.Resources = append(m.Resources, r)
	}
	addUnknown(rng, m)
	return m
}

func randomState(rng *rand.Rand) *discoveryv3.DiscoveryResponse {
	m := &discoveryv3.DiscoveryResponse{VersionInfo: "v", TypeUrl: "t", Nonce: fmt.Sprint(rng.Uint32()), Canary: true}
	for range rng.IntN(20) {
		if a := randomAny(rng); a != nil {
			m.Resources = append(m.Resources, a)
		}
	}
	addUnknown(rng, m)
	return m
}

// TestCodec: what is marshalled means the message, for sizes around the bounds, with all fields and unknown ones.
func TestCodec(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	sharing := 0
	for range 300 {
		for _, m := range []proto.Message{randomDelta(rng), randomState(rng), &discoveryv3.DiscoveryRequest{VersionInfo: "v"}} {
			parts, err := codec.Marshal(m)
			testkit.NoError(t, err)
			if len(parts) > 1 {
				sharing++
			} else if want := testkit.Must(codec.CodecV2.Marshal(m)); !bytes.Equal(parts.Materialize(), want.Materialize()) {
				t.Errorf("%T: other bytes than by gRPC's codec", m)
			}
			got := m.ProtoReflect().New().Interface()
			testkit.NoError(t, codec.Unmarshal(parts, got))
			if !proto.Equal(m, got) {
				t.Fatalf("%T: marshalled\n%v\nread back\n%v", m, m, got)
			}
		}
	}
	if sharing < 100 {
		t.Errorf("%d messages share their resources: the test is none", sharing)
	}
}

// TestCodecSharesResources: of large resources the message has the bytes themselves, and of its own little.
func TestCodecSharesResources(t *testing.T) {
	delta, state := &discoveryv3.DeltaDiscoveryResponse{Nonce: "1"}, &discoveryv3.DiscoveryResponse{Nonce: "1"}
	var values [][]byte
	for i := range 16 {
		a := &anypb.Any{TypeUrl: "t", Value: make([]byte, 128<<10)}
		values = append(values, a.Value)
		delta.Resources = append(delta.Resources, &discoveryv3.Resource{Name: fmt.Sprint("r", i), Resource: a})
		state.Resources = append(state.Resources, a)
	}
	for _, m := range []proto.Message{delta, state} {
		parts := testkit.Must(codec.Marshal(m))
		copied := parts.Len()
		for _, p := range parts {
			if slices.ContainsFunc(values, func(v []byte) bool { return &v[0] == &p.ReadOnlyData()[0] && len(v) == p.Len() }) {
				copied -= p.Len()
			}
		}
		if want := proto.Size(m); parts.Len() != want || copied > 4<<10 {
			t.Errorf("%T: %d bytes, of which %d are copies; want %d", m, parts.Len(), copied, want)
		}
	}
}

// TestCodecErrors: a message that is no valid protobuf is an error, as with gRPC's codec.
func TestCodecErrors(t *testing.T) {
	large := &anypb.Any{Value: make([]byte, minSharing)}
	for _, m := range []any{
		"text",
		&discoveryv3.DeltaDiscoveryResponse{Nonce: "\xff", Resources: []*discoveryv3.Resource{{Resource: large}}},
		&discoveryv3.DeltaDiscoveryResponse{Resources: []*discoveryv3.Resource{{Name: "\xff", Resource: large}}},
		&discoveryv3.DeltaDiscoveryResponse{Resources: []*discoveryv3.Resource{{Resource: large}, {Name: "\xff"}}},
		&discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{{TypeUrl: "\xff", Value: large.Value}}},
	} {
		if _, err := codec.Marshal(m); err == nil {
			t.Errorf("%T was marshalled", m)
		}
	}
}
