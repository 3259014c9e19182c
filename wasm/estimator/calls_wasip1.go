package main

import (
	"strconv"
	"unsafe"

	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/wasm/internal/lengthfilter"
)

// Answers to the proxy's calls.
const (
	goOn = 0 // let the request go on
	hold = 1 // hold it
	no   = 0
	yes  = 1
)

// stream is one request, of which the body is read if there is a Body.
type stream struct {
	filter *lengthfilter.Filter
	body   *lengthfilter.Body
}

// A module runs on one thread of the proxy, which calls it about one request at
// a time.
var (
	filters = map[int32]*lengthfilter.Filter{} // by context of a configuration
	streams = map[int32]stream{}               // by context of a request
)

//go:wasmexport proxy_abi_version_0_2_1
func version() {}

//go:wasmexport proxy_on_context_create
func create(context, parent int32) {
	if parent != 0 {
		streams[context] = stream{filter: filters[parent]}
	}
}

//go:wasmexport proxy_on_vm_start
func start(context, size int32) int32 { return yes }

// configure refuses a configuration that it cannot read: the proxy then keeps
// the one that it has.
//
//go:wasmexport proxy_on_configure
func configure(context, size int32) int32 {
	c, err := lengthfilter.ReadConfig(buffer(configuration, 0, size))
	if err != nil {
		return refuse(err)
	}
	f, err := lengthfilter.New(c)
	if err != nil {
		return refuse(err)
	}
	filters[context] = f
	return yes
}

func refuse(err error) int32 {
	proxyLog(levelWarn, "cascade length estimator: its configuration: "+err.Error())
	return no
}

//go:wasmexport proxy_on_request_headers
func onHeaders(context, count, ended int32) (action int32) {
	defer recovered(context, &action)
	s := streams[context]
	if s.filter == nil {
		return goOn
	}
	h := length.Headers{Ended: ended != 0}
	if !h.Ended {
		// The arena has it only until the next call. What is longer is no number.
		var digits [64]byte
		if v := header("content-length"); len(v) > 0 && len(v) <= len(digits) {
			h.ContentLength = unsafe.String(&digits[0], copy(digits[:], v))
		}
	}
	answer, body := s.filter.Headers(property("xds\x00virtual_host_metadata"), h)
	if body != nil {
		s.body = body
		streams[context] = s
	}
	return act(s.filter, answer)
}

// onBody is called with the size of what the proxy holds, which grows.
//
//go:wasmexport proxy_on_request_body
func onBody(context, size, ended int32) (action int32) {
	defer recovered(context, &action)
	s := streams[context]
	if s.body == nil {
		return goOn
	}
	for at := int32(s.body.Size()); at < size; at = int32(s.body.Size()) {
		chunk := buffer(requestBody, at, min(size-at, minArena))
		if len(chunk) == 0 {
			break
		}
		if !s.body.Write(chunk) {
			done(context, s)
			return act(s.filter, lengthfilter.Answer{What: lengthfilter.Reject})
		}
	}
	if ended == 0 {
		return hold
	}
	return finish(context, s)
}

// onTrailers is the end of a body that has trailers.
//
//go:wasmexport proxy_on_request_trailers
func onTrailers(context, count int32) (action int32) {
	defer recovered(context, &action)
	s := streams[context]
	if s.body == nil {
		return goOn
	}
	return finish(context, s)
}

func finish(context int32, s stream) int32 {
	answer := s.body.End()
	done(context, s)
	return act(s.filter, answer)
}

func done(context int32, s stream) {
	s.body.Close()
	s.body = nil
	streams[context] = s
}

// act does what an answer says. The proxy picks the route anew when a header
// has changed.
func act(f *lengthfilter.Filter, a lengthfilter.Answer) int32 {
	switch a.What {
	case lengthfilter.Wait:
		return hold
	case lengthfilter.Reject:
		proxyRespond(413, "cascade_length_request_too_large", length.TooLargeBody(f.MaxBody()), jsonType, noGRPC)
		return hold
	case lengthfilter.Tell:
		tell(length.ModelHeader, a.Model)
		if a.Tokens < 0 {
			tell(length.TokensHeader, "")
			break
		}
		var digits [20]byte
		text := strconv.AppendInt(digits[:0], int64(a.Tokens), 10)
		tell(length.TokensHeader, unsafe.String(&text[0], len(text)))
	}
	return goOn
}

// tell replaces a header, or removes one that is there.
func tell(name, value string) {
	if value != "" {
		proxySetHeader(requestHeaders, name, value)
	} else if header(name) != nil {
		proxyRemoveHeader(requestHeaders, name)
	}
}

// jsonType is one header, content-type, in the encoding of header maps: the
// count, the sizes, then names and values with a zero behind each.
const jsonType = "\x01\x00\x00\x00\x0c\x00\x00\x00\x10\x00\x00\x00content-type\x00application/json\x00"

// recovered has a request go on after a fault.
func recovered(context int32, action *int32) {
	if fault := recover(); fault != nil {
		*action = goOn
		delete(streams, context)
		why := "a fault of the module"
		if err, ok := fault.(error); ok {
			why = err.Error()
		}
		proxyLog(levelWarn, "cascade length estimator: "+why)
	}
}

//go:wasmexport proxy_on_done
func onDone(context int32) int32 { return yes }

//go:wasmexport proxy_on_delete
func onDelete(context int32) {
	if s, ok := streams[context]; ok {
		if s.body != nil {
			s.body.Close()
		}
		delete(streams, context)
		return
	}
	delete(filters, context)
}
