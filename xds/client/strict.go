package client

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// faults holds the first error of a decoding. Its methods do nothing for valid fields,
// so that a decoder can check all fields of a message and report once, at its end: what
// is decoded after an error is not used.
type faults struct{ err error }

// addf records an error, if it is the first one.
func (f *faults) addf(format string, args ...any) {
	if f.err == nil {
		f.err = fmt.Errorf(format, args...)
	}
}

// only records an error for the first field set in m that is not one of the known ones.
// The decoders call it for every message whose unknown fields could change where a
// request goes: ignoring such a field would route wrongly.
func (f *faults) only(at string, m proto.Message, known ...protoreflect.Name) {
	var unknown protoreflect.Name
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		// The order of Range is not fixed; the smallest name makes the error so.
		if !slices.Contains(known, f.Name()) && (unknown == "" || f.Name() < unknown) {
			unknown = f.Name()
		}
		return true
	})
	if unknown != "" {
		f.addf("%s.%s: not supported by this client; remove the field", at, unknown)
	}
}

// open unpacks an Any that must hold a T.
func open[T proto.Message](f *faults, at string, a *anypb.Any, into T) T {
	// protobuf's own errors differ from build to build; a NACK should not.
	switch want := into.ProtoReflect().Descriptor().FullName(); {
	case a == nil:
		f.addf("%s: missing; it must hold a %s", at, want)
	case a.MessageName() != want:
		f.addf("%s: holds a %q, not a %s", at, a.MessageName(), want)
	case a.UnmarshalTo(into) != nil:
		f.addf("%s: the bytes are no %s", at, want)
	}
	return into
}

// openNamed unpacks a resource that must have the name under which it came in one of its
// fields.
func openNamed[T proto.Message](f *faults, at, field, name string, a *anypb.Any, into T, nameOf func(T) string) T {
	m := open(f, at, a, into)
	if got := nameOf(m); got != name {
		f.addf("%s.%s: is %q, not the resource's", at, field, got)
	}
	return m
}

// period decodes a duration that must not be negative; unset is missing.
func (f *faults) period(at string, d *durationpb.Duration, missing time.Duration) time.Duration {
	if d == nil {
		return missing
	}
	if err := d.CheckValid(); err != nil {
		f.addf("%s: %w", at, err)
	} else if d.AsDuration() < 0 {
		f.addf("%s: a duration must not be negative", at)
	}
	return d.AsDuration()
}
