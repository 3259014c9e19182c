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

// only returns an error for the first field set in m that is not one of the known ones.
// The decoders call it for every message whose unknown fields could change where a
// request goes: ignoring such a field would route wrongly.
func only(at string, m proto.Message, known ...protoreflect.Name) error {
	var unknown protoreflect.Name
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		// The order of Range is not fixed; the smallest name makes the error so.
		if !slices.Contains(known, f.Name()) && (unknown == "" || f.Name() < unknown) {
			unknown = f.Name()
		}
		return true
	})
	if unknown != "" {
		return fmt.Errorf("%s.%s: not supported by this client; remove the field", at, unknown)
	}
	return nil
}

// open unpacks an Any that must hold a T.
func open[T proto.Message](at string, a *anypb.Any, into T) (T, error) {
	// protobuf's own errors differ from build to build; a NACK should not.
	switch want := into.ProtoReflect().Descriptor().FullName(); {
	case a == nil:
		return into, fmt.Errorf("%s: missing; it must hold a %s", at, want)
	case a.MessageName() != want:
		return into, fmt.Errorf("%s: holds a %q, not a %s", at, a.MessageName(), want)
	case a.UnmarshalTo(into) != nil:
		return into, fmt.Errorf("%s: the bytes are no %s", at, want)
	}
	return into, nil
}

// period decodes a duration that must not be negative; unset is missing.
func period(at string, d *durationpb.Duration, missing time.Duration) (time.Duration, error) {
	if d == nil {
		return missing, nil
	}
	if err := d.CheckValid(); err != nil {
		return 0, fmt.Errorf("%s: %w", at, err)
	}
	if t := d.AsDuration(); t >= 0 {
		return t, nil
	}
	return 0, fmt.Errorf("%s: a duration must not be negative", at)
}
