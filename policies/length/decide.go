package length

import "strconv"

// BodyLimit is the usual size of the largest body of a request, in bytes: a prompt of a million
// tokens fits as text. The proxies, estimators and replicas of a fleet have one limit.
const BodyLimit = 16 << 20

// Headers is the part of a request's headers that an estimator needs.
type Headers struct {
	// ContentLength is the value of that header, "" without one.
	ContentLength string
	// Ended reports that no body follows.
	Ended bool
	// Model reports that the host name determines the model.
	Model bool
}

// Strategy is what an estimator does after a request's headers.
type Strategy uint8

// The strategies. Every estimator uses the same one for the same request, so that an
// operator can replace one estimator by another.
const (
	// ModelOnly sets the model, if it is known: the request has no body, and so no prompt.
	ModelOnly Strategy = iota
	// BySize estimates the length from the body's size, without reading the body: the model
	// is known.
	BySize
	// ByBody reads the body, for its length or for the model.
	ByBody
	// RejectBody refuses the request: its body would have to be read, but exceeds the limit.
	RejectBody
)

// Strategy returns the strategy for a request and the size of its body, -1 if the
// headers do not state it. most is the largest body that is read, in bytes.
func (h Headers) Strategy(most int64) (Strategy, int64) {
	if h.Ended {
		return ModelOnly, 0
	}
	size := int64(-1)
	if h.ContentLength != "" { // the error of ParseUint would allocate
		if n, err := strconv.ParseUint(h.ContentLength, 10, 63); err == nil {
			size = int64(n)
		}
	}
	return h.StrategyFor(size, most), size
}

// StrategyFor returns the strategy for a body of a size, -1 if it is unknown, whatever
// ContentLength says.
func (h Headers) StrategyFor(size, most int64) Strategy {
	switch {
	case h.Ended:
		return ModelOnly
	case size < 0:
		return ByBody
	case h.Model:
		return BySize
	case size > most:
		return RejectBody
	}
	return ByBody
}

// TooLargeBody is the body of the 413 response to a request whose body must be read and
// has more bytes than most. It has the format of the OpenAI API's errors.
func TooLargeBody(most int64) string {
	return `{"error":{"message":"The request body is larger than ` + strconv.FormatInt(most, 10) +
		` bytes.","type":"invalid_request_error","param":null,"code":"request_too_large"}}`
}
