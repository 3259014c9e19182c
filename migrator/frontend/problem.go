package frontend

import (
	"errors"
	"net"
	"net/http"
	"strconv"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies/length"
)

// refuseRequest answers that another replica should serve the request: no token
// was produced, and proxies retry when they see the header.
func refuseRequest(w http.ResponseWriter, message string) {
	writeProblem(w, refusalProblem(message))
}

// refusalProblem returns the problem that refuseRequest answers with.
func refusalProblem(message string) openai.Problem {
	return openai.Problem{Status: http.StatusServiceUnavailable, Kind: "ServiceUnavailableError", Message: message}
}

// writeProblem writes a problem as the whole answer. One that says that this server is
// unavailable is a refusal.
func writeProblem(w http.ResponseWriter, p openai.Problem) {
	markRefusal(w.Header(), p.Status)
	body := p.Body()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	w.Write(body)
}

// markRefusal marks an answer of this server with status 503 for proxies, which then send
// the request to another replica. Answers of engines are marked by losses.
func markRefusal(h http.Header, status int) {
	if status == http.StatusServiceUnavailable {
		h.Set(length.RefusedHeader, length.RefusedUnbegun)
		h.Set("Retry-After", "1")
	}
}

var errConnectionLost = errors.New("its connection was lost")

// engineLostProblem returns the problem of a stream whose engine was lost.
func engineLostProblem(err error) openai.Problem {
	if errors.Is(err, errStopping) {
		return refusalProblem(err.Error() + "; send the request again")
	}
	if network := new(net.OpError); errors.As(err, &network) {
		err = errConnectionLost // without the addresses, which the log has
	}
	return openai.Problem{Status: http.StatusBadGateway, Kind: "EngineError",
		Message: "the engine's answer was cut: " + err.Error() + "; send the request again"}
}
