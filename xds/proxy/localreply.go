package proxy

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
)

// statusClientGone is the status counted for a client that left before the response; it
// is never sent.
const statusClientGone = 499

// Codes of the errors that the proxy itself answers with.
const (
	codeNoUpstream  = "no_healthy_upstream"
	codeOverload    = "upstream_overloaded"
	codeUnreachable = "upstream_unreachable"
	codeReset       = "upstream_reset"
	codeTimeout     = "upstream_timeout"
	codeTooLarge    = "request_too_large"
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
	x.editAnswer(h)
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
	high, low := rand.Uint64(), rand.Uint64()
	return fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x", high>>32, high>>16&0xffff, high&0xfff, 0x8000|low>>48&0x3fff,
		low&0xffffffffffff)
}
