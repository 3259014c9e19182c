package proxy

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"

	"github.com/cascadeinfer/cascade/internal/publicapi"
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

// replyError answers with an error of the proxy's own.
func (x *exchange) replyError(status int, code, message string) {
	if status == http.StatusServiceUnavailable {
		x.w.Header().Set("Retry-After", "1")
	}
	x.reply(status, publicapi.NewError(status, code, message).Body())
}

// replyRefusal answers with an error as engines write it. It returns true.
func (x *exchange) replyRefusal(status int, errorType, message string) bool {
	x.reply(status, publicapi.Error{Message: message, Type: errorType, Code: status}.Body())
	return true
}

// reply sends a whole answer; body is JSON, or empty.
func (x *exchange) reply(status int, body string) {
	x.code = status
	h := x.w.Header()
	if body != "" {
		h.Set("Content-Type", "application/json")
	}
	x.editAnswer(h)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	x.w.WriteHeader(status)
	if x.r.Method != http.MethodHead {
		// An error here is a client that left; the server closes for it.
		_, _ = x.w.Write([]byte(body))
	}
}

// newRequestID returns a random UUID (RFC 9562, version 4). It identifies, it
// protects nothing, so the fast generator will do.
func newRequestID() string {
	high, low := rand.Uint64(), rand.Uint64()
	return fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x", high>>32, high>>16&0xffff, high&0xfff, 0x8000|low>>48&0x3fff,
		low&0xffffffffffff)
}
