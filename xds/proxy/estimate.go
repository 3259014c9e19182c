package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"strconv"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// estimateLength sets the model and the length by which the request is routed, like all
// users of package length: from the headers if they suffice, otherwise from the body.
// It returns false if it has answered the request.
func (x *exchange) estimateLength() bool {
	var model *resources.LengthMeta
	if len(x.host.Models) == 1 {
		model = &x.host.Models[0]
	}
	bodiless := x.r.Body == nil || x.r.Body == http.NoBody || x.size == 0
	h := length.Headers{Ended: bodiless, Model: model != nil, Prefix: model != nil && model.Prefixes.Depth > 0}
	switch h.StrategyFor(x.size, x.bufferLimit()) {
	case length.ModelOnly:
		x.setLength(model, -1)
		return true
	case length.BySize:
		x.setLength(model, estimator(model).FromContentLength(x.size))
		return true
	case length.RejectBody:
		x.replyTooLarge()
		return false
	}
	var scanner length.Scanner
	for i := range x.host.Models {
		scanner.HashPrefix(max(scanner.PrefixDepth(), x.host.Models[i].Prefixes.Depth))
	}
	x.openBody()
	x.watchdog.start()
	ended := context.AfterFunc(x.ctx, func() { _ = x.watchdog.control.SetReadDeadline(time.Unix(1, 0)) })
	err := x.body.readAll(func(piece []byte) { scanner.Write(piece) })
	ended()
	switch {
	case errors.Is(err, errTooLarge):
		x.replyTooLarge()
		return false
	case errors.Is(err, errNoRoom) && model != nil && x.size >= 0:
		// Only the prefix key needs the body.
		x.setLength(model, estimator(model).FromContentLength(x.size))
		return true
	case errors.Is(err, errNoRoom):
		x.replyExhausted()
		return false
	case err != nil:
		x.replyBadBody(err)
		return false
	}
	if model == nil {
		name := scanner.Model()
		for i := range x.host.Models {
			if x.host.Models[i].Serves(string(name)) {
				model = &x.host.Models[i]
				break
			}
		}
	}
	x.setLength(model, estimator(model).FromBody(scanner.Count()))
	if model != nil {
		if key, ok := model.Prefixes.Key(&scanner); ok {
			x.header[textproto.CanonicalMIMEHeaderKey(length.PrefixHeader)] = []string{key.String()}
		}
	}
	return true
}

func estimator(m *resources.LengthMeta) length.Estimator {
	if m == nil {
		return length.Estimator{}
	}
	return length.Estimator{BytesPerToken: m.BytesPerToken}
}

// setLength sets the headers of the model and of the length, and removes that of the prefix
// key; nil and a negative count omit them.
func (x *exchange) setLength(m *resources.LengthMeta, tokens policies.Tokens) {
	model, count := textproto.CanonicalMIMEHeaderKey(length.ModelHeader), textproto.CanonicalMIMEHeaderKey(length.TokensHeader)
	delete(x.header, model)
	delete(x.header, count)
	delete(x.header, textproto.CanonicalMIMEHeaderKey(length.PrefixHeader))
	if m != nil {
		x.header[model] = []string{m.Model}
	}
	if tokens >= 0 {
		// A route's open end excludes the largest int64 itself.
		x.header[count] = []string{strconv.FormatInt(int64(min(tokens, policies.Unbounded-1)), 10)}
	}
}

func (x *exchange) replyTooLarge() {
	x.replyError(413, codeTooLarge, fmt.Sprintf("The request body has to be read to find its model and length, and is larger than %d bytes. Send a smaller one, or use the host name of one model.", x.bufferLimit()))
}

// replyBadBody answers a request whose body could not be read.
func (x *exchange) replyBadBody(err error) {
	if x.clientLeft() {
		x.code = statusClientGone
		return
	}
	if errors.Is(context.Cause(x.ctx), errStopping) {
		x.replyStopping()
		return
	}
	if errors.Is(context.Cause(x.ctx), errSlowBody) {
		x.replyError(408, codeTimeout, "The request body arrives too slowly.")
		return
	}
	if x.ctx.Err() != nil {
		x.replyError(408, codeTimeout, fmt.Sprintf("The request body did not arrive: no data for %v.", x.listener.StreamIdle.Round(time.Millisecond)))
		return
	}
	x.replyError(400, codeBadBody, "The request body cannot be read: "+err.Error()+".")
}
