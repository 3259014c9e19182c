package openai

import (
	"encoding/json"
	"net/http"

	"github.com/tidwall/gjson"
)

// Problem is an error in the form in which OpenAI-compatible engines report
// errors.
type Problem struct {
	Status  int    // HTTP status
	Kind    string // the error's type; "" for one that fits the status
	Message string // what is wrong and what to do about it
	// RetryAfter is after how many seconds the request may be sent again; 0 says nothing of it.
	RetryAfter int
}

// Body returns the JSON text of the problem.
func (p Problem) Body() []byte {
	kind := p.Kind
	if kind == "" {
		kind = "InternalServerError"
		if p.Status < 500 {
			kind = "BadRequestError"
		}
	}
	type inner struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
	}
	// Marshal cannot fail on these types.
	b, _ := json.Marshal(struct {
		Error inner `json:"error"`
	}{inner{p.Message, kind, nil, p.Status}})
	return b
}

// Event returns the problem as the last event of a stream.
func (p Problem) Event() []byte {
	return append(append([]byte("data: "), p.Body()...), "\n\n"...)
}

// FailureStatus returns the HTTP status for an error that an engine reported
// inside a stream: its code if that is a status, else 500.
func FailureStatus(failed []byte) int {
	code := int(gjson.Parse(unsafeString(failed)).Get("error.code").Int())
	if code < 400 || code > 599 {
		return http.StatusInternalServerError
	}
	return code
}
