package main

import (
	"unsafe"
)

// The calls into the proxy, of proxy-wasm's ABI 0.2.1. Their first result is a
// status, 0 for success.

//go:wasmimport env proxy_log
func proxyLog(level int32, text string) int32

//go:wasmimport env proxy_get_buffer_bytes
func proxyBuffer(kind, start, size int32, data, length unsafe.Pointer) int32

//go:wasmimport env proxy_get_header_map_value
func proxyHeader(kind int32, name string, data, length unsafe.Pointer) int32

//go:wasmimport env proxy_replace_header_map_value
func proxySetHeader(kind int32, name, value string) int32

//go:wasmimport env proxy_remove_header_map_value
func proxyRemoveHeader(kind int32, name string) int32

//go:wasmimport env proxy_get_property
func proxyProperty(path string, data, length unsafe.Pointer) int32

//go:wasmimport env proxy_send_local_response
func proxyRespond(status int32, details, body, headers string, grpcStatus int32) int32

const (
	levelWarn      = 3
	requestHeaders = 0 // kind of header map
	requestBody    = 0 // kinds of buffer
	configuration  = 7
	noGRPC         = -1
)

// arena is where the proxy puts what a call of ours asks for. Each such call
// has one result, which is read before the next one.
var arena []byte

// allocate gives the proxy room within a call.
//
//go:wasmexport proxy_on_memory_allocate
func allocate(size int32) unsafe.Pointer {
	if int(size) > len(arena) {
		arena = make([]byte, max(int(size), minArena))
	}
	return unsafe.Pointer(unsafe.SliceData(arena))
}

// minArena holds what a request's headers and one piece of a body need.
const minArena = 64 << 10

// out is where the proxy says what it has put into the arena: an address and a
// size. It is no local, as each would escape to the heap.
var out struct {
	data uint32
	size uint32
}

// result is what the latest call has asked for; it is good until the next one.
func result(status int32) []byte {
	if status != 0 || out.size == 0 || int(out.size) > len(arena) {
		return nil
	}
	return arena[:out.size]
}

func buffer(kind, start, size int32) []byte {
	return result(proxyBuffer(kind, start, size, unsafe.Pointer(&out.data), unsafe.Pointer(&out.size)))
}

func header(name string) []byte {
	return result(proxyHeader(requestHeaders, name, unsafe.Pointer(&out.data), unsafe.Pointer(&out.size)))
}

func property(path string) []byte {
	return result(proxyProperty(path, unsafe.Pointer(&out.data), unsafe.Pointer(&out.size)))
}
