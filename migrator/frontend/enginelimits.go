package frontend

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"

	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
)

// engineLimits is what the engine states when it refuses a request that is beyond it. 0 stands for unknown.
type engineLimits struct {
	// How many tokens the engine generates for one request at most by its own settings (such as max_new_tokens of
	// a generation config). A leg that continues a stream at another engine must not get them a second time.
	byDefault policies.Tokens // for a chat that states no limit
	always    policies.Tokens // for any request; what it states is reduced to it

	vocabulary policies.Tokens // the token ids of prompts are below it
}

// of returns the limit of a request that states max_tokens, 0 for none.
func (l engineLimits) of(e openai.Endpoint, maxTokens policies.Tokens) policies.Tokens {
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
	return srv.limits().of(e, maxTokens)
}

// limits returns those of the engine that are known.
func (srv *Server) limits() engineLimits {
	if l := srv.engineLimits.Load(); l != nil {
		return *l
	}
	return engineLimits{}
}

// askLimits asks the engine for its limits. An engine states them when it refuses a request, so the requests are for
// more tokens than any engine generates, and about an id that no vocabulary has. One that answers in another way has
// limits that are not known.
func (srv *Server) askLimits(ctx context.Context) {
	const output = `{"prompt":[1],"max_tokens":%s,"min_tokens":2147483647,"stream":true}`
	c, l := srv.dialect().Capabilities(), engineLimits{}
	if l.byDefault = srv.askLimit(ctx, c.OutputLimit, fmt.Sprintf(output, "null")); l.byDefault > 0 {
		// One more than the default is granted unless the limit is for all.
		if n := srv.askLimit(ctx, c.OutputLimit, fmt.Sprintf(output, strconv.FormatInt(int64(l.byDefault)+1, 10))); n == l.byDefault {
			l.always = n
		}
	}
	if last := srv.askLimit(ctx, c.LastID, `{"prompt":[1],"max_tokens":1,"logit_bias":{"2147483647":0}}`); last > 0 {
		l.vocabulary = last + 1
	}
	srv.engineLimits.Store(&l)
	srv.log.Debug("engine asked for its limits", "output_default", l.byDefault, "output_always", l.always, "vocabulary", l.vocabulary)
}

// askLimit returns the limit that the engine states in its refusal of a request, 0 if it states none. stated finds it;
// nil: the engine is not asked.
func (srv *Server) askLimit(ctx context.Context, stated *regexp.Regexp, body string) policies.Tokens {
	if stated == nil {
		return 0
	}
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

// parseRequest parses the body of a client or of a peer's leg. The error is for the client: the engine would refuse the
// body, or it would not survive it.
func (srv *Server) parseRequest(d dialect.Dialect, e openai.Endpoint, body []byte) (openai.Request, error) {
	req, err := d.Capabilities().Fields.Parse(e, body)
	if most := srv.limits().vocabulary; err == nil && most > 0 && !req.IDsBelow(most) {
		err = fmt.Errorf("an object with a token id that is out of the vocabulary: ids are whole numbers from 0 to %d", most-1)
	}
	return req, err
}
