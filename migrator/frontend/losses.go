package frontend

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync/atomic"

	"github.com/cascadeinfer/cascade/internal/localfault"
	"github.com/cascadeinfer/cascade/migrator/internal/session"
	"github.com/cascadeinfer/cascade/policies/length"
)

// losses counts the engines that one request may have broken: they got it, and were lost before they
// answered. session.MaxLosses of them end the request, whether front ends or proxies send it again:
// it must not break all engines.
//
// A proxy that sends a request again states the number of the attempt. Each earlier one counts as a
// loss, because the proxy does not say how it ended. The proxy is asked for another attempt, or may
// decide on one when this process dies, only until the last engine has got the request.
type losses struct {
	earlier int                 // attempts of the proxy before this one
	here    int                 // engines lost by this front end
	peer    bool                // another front end has sent the request, and counts its own losses
	proxy   http.ResponseWriter // of a proxy that states its attempts; nil for none
}

// readLosses returns the losses of a client's request, as far as its proxy states them.
func readLosses(w http.ResponseWriter, h http.Header) losses {
	n, err := strconv.Atoi(h.Get(length.AttemptHeader))
	if err != nil || n < 1 {
		return losses{}
	}
	return losses{earlier: n - 1, proxy: w}
}

// exhausted reports whether a request that was lost here may get no other engine.
func (l losses) exhausted() bool { return l.here > 0 && l.earlier+l.here >= session.MaxLosses }

// note counts a loss if err is one.
func (l *losses) note(err error) {
	if isLost(err) {
		l.here++
	}
}

// announceLast returns a function to call when an engine gets the request, or nil if another engine may
// get it later. The function sends the proxy a 102 (Processing). After an interim response, which they
// do not pass on, Envoy and the embedded proxy do not retry, not even if this process dies.
func (l losses) announceLast() func() {
	if l.proxy == nil || l.earlier+l.here < session.MaxLosses-1 {
		return nil
	}
	announced := false
	return func() {
		if !announced {
			announced = true
			l.proxy.WriteHeader(http.StatusProcessing)
		}
	}
}

// mark asks the sender of a request that was lost here for another attempt, unless the losses are exhausted.
func (l losses) mark(h http.Header) {
	if l.peer || l.proxy != nil && !l.exhausted() {
		h.Set(length.RefusedHeader, length.RefusedLost)
	}
}

// lostError is the error of a request whose engine was lost before it answered.
type lostError struct{ error }

func (e *lostError) Unwrap() error { return e.error }

func isLost(err error) bool { return errors.As(err, new(*lostError)) }

// withBegin returns a context for a transport. Once the transport has a connection for the call, the
// engine may get the request: the context's hook then sets begun, and calls onBegin.
//
// An idle connection may be that of an engine that died before. The transport then tries another one;
// unless it had written the whole request, no engine has got it yet.
func (l *call) withBegin(ctx context.Context) context.Context {
	written := new(atomic.Bool)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { l.begun.Store(written.Load()) },
		GotConn: func(httptrace.GotConnInfo) {
			l.begun.Store(true)
			if l.onBegin != nil {
				l.onBegin()
			}
		},
		WroteRequest: func(i httptrace.WroteRequestInfo) {
			if i.Err == nil {
				written.Store(true)
			}
		},
	})
}

// failure returns the error of the call, which is a lostError if the engine may have got it.
func (l *call) failure(err error) error {
	err = l.causeOr(err)
	if !l.begun.Load() || errors.Is(err, errLatePrefix) || localfault.Is(err) || isLost(err) {
		return err
	}
	return &lostError{err}
}
