package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// estimateLength sets the length, and the model if the host name does not select one. It follows the same strategy as
// the other estimators: by the headers if they suffice, otherwise by the body. It returns false if it has answered the
// request.
func (x *exchange) estimateLength() bool {
	defer x.setHeaders()
	model := x.model
	bodiless := x.r.Body == nil || x.r.Body == http.NoBody || x.size == 0
	h := length.Headers{Ended: bodiless, Model: model != nil}
	switch h.StrategyFor(x.size, x.state.plan.Proxy.BodyLimit) {
	case length.ModelOnly:
		return true
	case length.BySize:
		x.tokens = model.Estimator().FromContentLength(x.size)
		return true
	case length.RejectBody:
		x.replyTooLarge()
		return false
	}
	var scanner length.Scanner
	x.openBody()
	x.watchdog.start()
	ended := context.AfterFunc(x.ctx, func() { _ = x.watchdog.control.SetReadDeadline(time.Unix(1, 0)) })
	err := x.body.readAll(func(piece []byte) { scanner.Write(piece) })
	ended()
	switch {
	case errors.Is(err, errTooLarge):
		x.replyTooLarge()
		return false
	case errors.Is(err, errNoRoom):
		x.replyExhausted()
		return false
	case err != nil:
		x.replyUnanswered(err)
		return false
	}
	if model == nil {
		if model = x.state.view.ByName(string(scanner.Model())); model == nil {
			return true
		}
		x.model = model
	}
	x.tokens = model.Estimator().FromBody(scanner.Count())
	return true
}

// The headers of an estimate, in canonical form.
var (
	modelHeader  = http.CanonicalHeaderKey(length.ModelHeader)
	tokensHeader = http.CanonicalHeaderKey(length.TokensHeader)
)

// setHeaders sets the headers of the model and the length, as far as known.
func (x *exchange) setHeaders() {
	if x.model != nil {
		x.header[modelHeader] = []string{x.model.Model}
	}
	if x.tokens >= 0 {
		// A route's open end excludes the largest int64 itself.
		x.header[tokensHeader] = []string{strconv.FormatInt(int64(min(x.tokens, policies.Unbounded-1)), 10)}
	}
}

func (x *exchange) replyTooLarge() {
	x.replyError(413, codeTooLarge, fmt.Sprintf("The request body has to be read to find its model and length, and is larger than %d bytes. "+
		"Send a smaller one, or use the host name of one model.", x.state.plan.Proxy.BodyLimit))
}
