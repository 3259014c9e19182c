package frontend

import (
	"net/http"
	"strconv"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies/length"
)

// refuseRequest answers that another replica should serve the request: no token
// was produced, and proxies retry when they see the header.
func refuseRequest(w http.ResponseWriter, message string) {
	w.Header().Set(length.RefusedHeader, "1")
	w.Header().Set("Retry-After", "1")
	writeProblem(w, openai.Problem{Status: http.StatusServiceUnavailable, Kind: "ServiceUnavailableError", Message: message})
}

// writeProblem writes a problem as the whole answer.
func writeProblem(w http.ResponseWriter, p openai.Problem) {
	body := p.Body()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	w.Write(body)
}

// engineLostProblem returns the problem of a stream whose engine was lost.
func engineLostProblem(err error) openai.Problem {
	return openai.Problem{Status: http.StatusBadGateway, Kind: "EngineError",
		Message: "the engine's answer was cut: " + err.Error() + "; send the request again"}
}
