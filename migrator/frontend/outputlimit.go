package frontend

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
)

// outputLimits is how many tokens the engine generates for one request at most by
// its own settings (such as max_new_tokens of a generation config). A leg that
// continues a stream at another engine must not get them a second time. 0 stands
// for unknown.
type outputLimits struct {
	byDefault policies.Tokens // for a chat that states no limit
	always    policies.Tokens // for any request; what it states is reduced to it
}

// of returns the limit of a request that states max_tokens, 0 for none.
func (l outputLimits) of(e openai.Endpoint, maxTokens policies.Tokens) policies.Tokens {
	if e == openai.Chat && maxTokens == 0 {
		return l.byDefault
	}
	return l.always
}

// outputLimit returns the limit of a first leg: the own engine's, or what the
// peer that runs it has stated.
func (srv *Server) outputLimit(b openedLeg, e openai.Endpoint, maxTokens policies.Tokens) policies.Tokens {
	if b.local == nil {
		n, err := strconv.ParseUint(b.header.Get(OutputLimitHeader), 10, 32)
		if err != nil {
			return 0
		}
		return policies.Tokens(n)
	}
	if l := srv.outputLimits.Load(); l != nil {
		return l.of(e, maxTokens)
	}
	return 0
}

// askOutputLimits asks the engine for its limits. An engine states them when it
// refuses a request, so both requests are for more tokens than any engine
// generates. One that answers in another way has limits that are not known.
func (srv *Server) askOutputLimits(ctx context.Context) {
	var l outputLimits
	stated := srv.dialect().Capabilities().OutputLimit
	if stated == nil {
		srv.outputLimits.Store(&l)
		return
	}
	l.byDefault = srv.askOutputLimit(ctx, stated, "null")
	if l.byDefault > 0 {
		// One more than the default is granted unless the limit is for all.
		if n := srv.askOutputLimit(ctx, stated, strconv.FormatInt(int64(l.byDefault)+1, 10)); n == l.byDefault {
			l.always = n
		}
	}
	srv.outputLimits.Store(&l)
	srv.log.Debug("engine asked for its limits of output tokens", "default", l.byDefault, "always", l.always)
}

// askOutputLimit returns the limit that the engine states for a request with
// max_tokens, 0 if it states none. stated finds it in the refusal.
func (srv *Server) askOutputLimit(ctx context.Context, stated *regexp.Regexp, maxTokens string) policies.Tokens {
	body := fmt.Sprintf(`{"prompt":[1],"max_tokens":%s,"min_tokens":2147483647,"stream":true}`, maxTokens)
	resp, err := srv.probeCall(ctx, http.MethodPost, openai.Completions.Path(), body)
	if err != nil {
		return 0
	}
	defer resp.Body.Close() // which ends the generation of an engine that has begun one
	if resp.StatusCode != http.StatusBadRequest {
		return 0
	}
	refused, _ := io.ReadAll(io.LimitReader(resp.Body, 8*maxExcerpt))
	m := stated.FindSubmatch(refused)
	if m == nil {
		return 0
	}
	n, _ := strconv.ParseInt(string(m[1]), 10, 64) // nine digits
	return policies.Tokens(n)
}
