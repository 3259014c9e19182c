package emulator

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
)

// apiError is an error in vLLM's JSON shape.
type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"` // the HTTP status
}

func (e *apiError) Error() string { return e.Message }

// invalid is a 400 about one field of the request.
func invalid(param, format string, args ...any) *apiError {
	e := &apiError{Message: fmt.Sprintf(format, args...), Type: "BadRequestError", Code: http.StatusBadRequest}
	if param != "" {
		e.Param = &param
	}
	return e
}

// malformed is a 400 about the body as a whole.
func malformed(format string, args ...any) *apiError {
	return &apiError{Message: fmt.Sprintf(format, args...), Type: "Bad Request", Code: http.StatusBadRequest}
}

// conflict is a 409: the request conflicts with the engine's state.
func conflict(param, format string, args ...any) *apiError {
	e := invalid(param, format, args...)
	e.Type, e.Code = "ConflictError", http.StatusConflict
	return e
}

func unavailable(err error) *apiError {
	return &apiError{Message: err.Error(), Type: "ServiceUnavailableError", Code: http.StatusServiceUnavailable}
}

// notServing is the answer to a request that the engine does not take: a 503, or a 500 once its core
// has died.
func (e *Engine) notServing(err error) *apiError {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.died {
		return &apiError{Message: "EngineCore encountered an issue. See stack trace (above) for the root cause.", Type: "InternalServerError", Code: http.StatusInternalServerError}
	}
	return unavailable(err)
}

// body is {"error": …}.
func (e *apiError) body() []byte {
	b, err := json.Marshal(struct {
		Error *apiError `json:"error"`
	}{e})
	if err != nil {
		panic("internal error: " + err.Error())
	}
	return b
}

func writeError(w http.ResponseWriter, e *apiError) {
	writeJSON(w, e.Code, e.body())
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	w.Write(body)
}
