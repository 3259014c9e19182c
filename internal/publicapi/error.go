package publicapi

import (
	"encoding/json"
	"net/http"
)

// Error is an error in the format of the OpenAI API.
type Error struct {
	Message string `json:"message"`
	Type    string `json:"type"`
	Param   any    `json:"param"` // the name of a parameter; nil: none
	Code    any    `json:"code"`  // a name; engines write the status
}

// NewError returns an error of Cascade's own, whose code is a name.
func NewError(status int, code, message string) Error {
	kind := "invalid_request_error"
	if status >= http.StatusInternalServerError {
		kind = "server_error"
	}
	return Error{Message: message, Type: kind, Code: code}
}

// Body returns the body of an answer with the error.
func (e Error) Body() string {
	body, err := json.Marshal(map[string]Error{"error": e})
	if err != nil {
		panic("internal error: " + err.Error()) // strings and numbers always marshal
	}
	return string(body)
}
