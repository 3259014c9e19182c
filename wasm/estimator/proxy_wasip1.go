package main

import (
	"unsafe"
)

// Functions of the proxy, of proxy-wasm's ABI 0.2.1. Their first result is a status, 0
// for success.

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

// arena is the memory in which the proxy returns data. A call returns at most one piece
// of data, which is read before the next call.
var arena []byte

// allocate returns memory for data that the proxy returns from a call.
//
//go:wasmexport proxy_on_memory_allocate
func allocate(size int32) unsafe.Pointer {
	if int(size) > len(arena) {
		arena = make([]byte, max(int(size), minArena))
	}
	return unsafe.Pointer(unsafe.SliceData(arena))
}

// minArena is enough for a request's headers and one chunk of a body, in bytes.
const minArena = 64 << 10

// out receives the address and the size of the data in the arena. It is not a local
// variable, because that would escape to the heap.
var out struct {
	data uint32
	size uint32
}

// result returns the data of the last call. It is valid until the next call.
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
