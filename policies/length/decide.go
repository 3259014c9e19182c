package length

import "strconv"

// Headers is what a request's headers tell an estimator.
type Headers struct {
	// ContentLength is the value of that header, "" without one.
	ContentLength string
	// Ended says that no body follows.
	Ended bool
	// Model says that the host name alone tells the model.
	Model bool
}

// Strategy is what an estimator does once it has seen a request's headers.
type Strategy uint8

// The steps. Every estimator takes the same one for the same request, so that
// an operator may exchange one for another.
const (
	// NoBody: there is no body, so there is no prompt. The model is all that
	// there is to tell.
	NoBody Strategy = iota
	// BySize: the model is known and so is the body's size, which is estimated
	// from; nobody reads the body.
	BySize
	// ByBody: the body has to be read, for its length or for the model.
	ByBody
	// RejectBody: the body would have to be read, and is larger than what is read.
	RejectBody
)

// Strategy returns the step for a request and the size of its body, -1 where the
// headers do not tell it. most is the largest body that is read, in bytes.
func (h Headers) Strategy(most int64) (Strategy, int64) {
	if h.Ended {
		return NoBody, 0
	}
	if h.ContentLength == "" {
		return ByBody, -1 // the error of ParseUint would be garbage
	}
	n, err := strconv.ParseUint(h.ContentLength, 10, 63)
	if err != nil {
		return ByBody, -1
	}
	size := int64(n)
	switch {
	case h.Model:
		return BySize, size
	case size > most:
		return RejectBody, size
	}
	return ByBody, size
}

// TooLargeBody is the body of the answer, with status 413, to a request whose body
// would have to be read and has more bytes than most. It has the shape of the
// OpenAI API's errors.
func TooLargeBody(most int64) string {
	return `{"error":{"message":"The request body is larger than ` + strconv.FormatInt(most, 10) +
		` bytes.","type":"invalid_request_error","param":null,"code":"request_too_large"}}`
}
