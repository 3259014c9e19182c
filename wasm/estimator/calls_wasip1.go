package main

import (
	"strconv"
	"unsafe"

	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/wasm/internal/lengthfilter"
)

// Results of callbacks.
const (
	goOn = 0 // continue with the request
	hold = 1 // pause the request
	no   = 0
	yes  = 1
)

// stream is a request; its body is scanned if body is not nil.
type stream struct {
	filter *lengthfilter.Filter
	body   *lengthfilter.Body
}

// A module runs on one thread of the proxy, which makes one callback at a time.
var (
	filters = map[int32]*lengthfilter.Filter{} // by configuration context
	streams = map[int32]stream{}               // by request context
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

// configure refuses an invalid configuration: the proxy then keeps the present one.
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
		// Copy it: the arena is valid only until the next call. A longer value is not a
		// number.
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

// onBody is called with the size of the body that the proxy has buffered so far.
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
			return act(s.filter, lengthfilter.Answer{Action: lengthfilter.Reject})
		}
	}
	if ended == 0 {
		return hold
	}
	return finish(context, s)
}

// onTrailers is called at the end of a body with trailers.
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

// act carries out an answer. The proxy selects the route again when a header has
// changed.
func act(f *lengthfilter.Filter, a lengthfilter.Answer) int32 {
	switch a.Action {
	case lengthfilter.Wait:
		return hold
	case lengthfilter.Reject:
		proxyRespond(413, "cascade_length_request_too_large", length.TooLargeBody(f.MaxBody()), jsonType, noGRPC)
		return hold
	case lengthfilter.SetHeaders:
		setHeader(length.ModelHeader, a.Model)
		if a.Tokens < 0 {
			setHeader(length.TokensHeader, "")
			break
		}
		var digits [20]byte
		text := strconv.AppendInt(digits[:0], int64(a.Tokens), 10)
		setHeader(length.TokensHeader, unsafe.String(&text[0], len(text)))
	}
	return goOn
}

// setHeader sets a header, or removes it if the value is empty.
func setHeader(name, value string) {
	if value != "" {
		proxySetHeader(requestHeaders, name, value)
	} else if header(name) != nil {
		proxyRemoveHeader(requestHeaders, name)
	}
}

// jsonType is the header content-type in the encoding of header maps: the count, the
// sizes, then names and values, each followed by a zero.
const jsonType = "\x01\x00\x00\x00\x0c\x00\x00\x00\x10\x00\x00\x00content-type\x00application/json\x00"

// recovered lets a request continue after a panic.
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
