package proxy

import (
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"strconv"
)

// statusClientGone is the status counted for a client that left before the response; it
// is never sent.
const statusClientGone = 499

// Codes of the errors that the proxy itself answers with.
const (
	codeNoHost      = "no_virtual_host"
	codeNoRoute     = "no_route"
	codeNoCluster   = "no_cluster"
	codeNoUpstream  = "no_healthy_upstream"
	codeOverload    = "upstream_overloaded"
	codeUnreachable = "upstream_unreachable"
	codeReset       = "upstream_reset"
	codeTimeout     = "upstream_timeout"
	codeTooLarge    = "request_too_large"
	codeNoFilter    = "filter_missing"
	codeBadBody     = "bad_request_body"
	codeStopping    = "proxy_stopping"
)

// apiError is an error in the shape of the OpenAI API.
type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

// replyError answers with an error of the proxy's own.
func (x *exchange) replyError(status int, code, message string) {
	kind := "invalid_request_error"
	if status >= 500 {
		kind = "server_error"
	}
	body, err := json.Marshal(map[string]apiError{"error": {Message: message, Type: kind, Code: code}})
	if err != nil {
		panic("internal error: " + err.Error())
	}
	h := x.w.Header()
	h.Set("Content-Type", "application/json")
	x.mutateResponse(h, "")
	x.replyLocal(status, body)
}

// replyLocal sends a whole answer.
func (x *exchange) replyLocal(status int, body []byte) {
	x.code = status
	x.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	x.w.WriteHeader(status)
	if x.r.Method != http.MethodHead {
		// An error here is a client that left; the server closes for it.
		_, _ = x.w.Write(body)
	}
}

// newRequestID returns a random UUID (RFC 9562, version 4). It identifies, it
// protects nothing, so the fast generator will do.
func newRequestID() string {
	const hex = "0123456789abcdef"
	var out [36]byte
	bits, left := uint64(0), 0
	for i := range out {
		if i == 8 || i == 13 || i == 18 || i == 23 {
			out[i] = '-'
			continue
		}
		if left == 0 {
			bits, left = rand.Uint64(), 16
		}
		d := bits & 15
		bits, left = bits>>4, left-1
		switch i {
		case 14:
			d = 4
		case 19:
			d = 8 | d&3
		}
		out[i] = hex[d]
	}
	return string(out[:])
}
