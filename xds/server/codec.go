package server

import (
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto" // registers the codec that this one extends
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// Options are the options of a gRPC server with these services, which may have others, too.
func Options() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ForceServerCodecV2(sharingCodec{encoding.GetCodecV2(protocodec.Name)})}
}

const (
	// minShared is the least size of a resource whose bytes are shared: a smaller one is copied, as a buffer of its own
	// would cost as much.
	minShared = 4 << 10
	// minSharing is how many bytes of a message must be shared for it to be worth the work.
	minSharing = 32 << 10
)

// The numbers of fields that the codec writes itself.
const (
	fieldResources = 2 // of DeltaDiscoveryResponse and DiscoveryResponse
	fieldResource  = 2 // of Resource
	fieldValue     = 2 // of Any
)

// sharingCodec is gRPC's codec for protobuf, except that large responses do not copy their resources. The
// cache has each resource once, for all nodes, and gRPC keeps a response until the client has read it: when all
// proxies of a large fleet subscribe at once, copies would take gigabytes. The resources of a response must not change,
// which the cache guarantees.
type sharingCodec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c sharingCodec) Marshal(v any) (mem.BufferSlice, error) {
	var w shared
	switch m := v.(type) {
	case *discoveryv3.DeltaDiscoveryResponse:
		if !sharesEnough(m.Resources, (*discoveryv3.Resource).GetResource) {
			break
		}
		if err := w.appendRest(m, fieldResources); err != nil {
			return nil, err
		}
		for _, r := range m.Resources {
			if err := w.appendResource(r); err != nil {
				return nil, err
			}
		}
		return w.buffers(), nil
	case *discoveryv3.DiscoveryResponse:
		if !sharesEnough(m.Resources, func(a *anypb.Any) *anypb.Any { return a }) {
			break
		}
		if err := w.appendRest(m, fieldResources); err != nil {
			return nil, err
		}
		for _, a := range m.Resources {
			if err := w.appendAny(fieldResources, a); err != nil {
				return nil, err
			}
		}
		return w.buffers(), nil
	}
	return c.CodecV2.Marshal(v)
}

// sharesEnough reports whether a message with these resources has enough bytes to share.
func sharesEnough[T any](all []T, resource func(T) *anypb.Any) bool {
	total := 0
	for _, r := range all {
		if n := len(resource(r).GetValue()); n >= minShared {
			total += n
		}
	}
	return total >= minSharing
}

// shared is a message whose large parts belong to others. The order of its fields is another one than protobuf's, which
// all decoders accept.
type shared struct {
	parts mem.BufferSlice
	own   []byte // what follows parts
}

// buffers returns the whole message.
func (w *shared) buffers() mem.BufferSlice {
	if len(w.own) > 0 {
		w.parts, w.own = append(w.parts, mem.SliceBuffer(w.own)), nil
	}
	return w.parts
}

// appendRest appends the fields of a message but for one.
func (w *shared) appendRest(m proto.Message, without protowire.Number) (err error) {
	rest := m.ProtoReflect().New()
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Number() != without {
			rest.Set(f, v)
		}
		return true
	})
	rest.SetUnknown(m.ProtoReflect().GetUnknown())
	w.own, err = proto.MarshalOptions{}.MarshalAppend(w.own, rest.Interface())
	return err
}

// appendResource appends a resource of a DeltaDiscoveryResponse.
func (w *shared) appendResource(r *discoveryv3.Resource) error {
	if len(r.GetResource().GetValue()) < minShared {
		return w.appendMessage(fieldResources, r)
	}
	var head shared
	if err := head.appendRest(r, fieldResource); err != nil {
		return err
	}
	w.own = protowire.AppendTag(w.own, fieldResources, protowire.BytesType)
	w.own = protowire.AppendVarint(w.own, uint64(len(head.own)+protowire.SizeTag(fieldResource)+protowire.SizeBytes(proto.Size(r.Resource))))
	w.own = append(w.own, head.own...)
	return w.appendAny(fieldResource, r.Resource)
}

// appendAny appends a field with an Any.
func (w *shared) appendAny(field protowire.Number, a *anypb.Any) error {
	if len(a.GetValue()) < minShared {
		return w.appendMessage(field, a)
	}
	w.own = protowire.AppendTag(w.own, field, protowire.BytesType)
	w.own = protowire.AppendVarint(w.own, uint64(proto.Size(a)))
	if err := w.appendRest(a, fieldValue); err != nil {
		return err
	}
	w.own = protowire.AppendTag(w.own, fieldValue, protowire.BytesType)
	w.own = protowire.AppendVarint(w.own, uint64(len(a.Value)))
	w.parts, w.own = append(w.parts, mem.SliceBuffer(w.own), mem.SliceBuffer(a.Value)), nil
	return nil
}

// appendMessage appends a field with a message, copied.
func (w *shared) appendMessage(field protowire.Number, m proto.Message) (err error) {
	w.own = protowire.AppendTag(w.own, field, protowire.BytesType)
	w.own = protowire.AppendVarint(w.own, uint64(proto.Size(m)))
	w.own, err = proto.MarshalOptions{}.MarshalAppend(w.own, m)
	return err
}
