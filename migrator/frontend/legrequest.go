package frontend

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/loadtracker"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// The headers of the requests for legs that migrators send to each other and to
// engines. All begin with x-cascade-, which is stripped from clients' requests.
const (
	// ForwardHeader names the replica whose front end owns the request. A peer
	// never forwards a request that carries it, and accepts none without it.
	ForwardHeader = "X-Cascade-Forward"
	// RequestHeader is the stream's id at its front end. A request without one (a
	// warm-up) is served and counted, but can neither be named nor migrated.
	RequestHeader = "X-Cascade-Request"
	// LegEpochHeader is the epoch of the stream in which the leg runs.
	LegEpochHeader = "X-Cascade-Epoch"
	// FeaturesHeader is the request's policies.Features in decimal.
	FeaturesHeader = "X-Cascade-Features"
	// PromptHeader and OutputHeader are the exact token counts of a stream that
	// has begun elsewhere.
	PromptHeader = "X-Cascade-Prompt"
	OutputHeader = "X-Cascade-Output"
	// CachedHeader is how many tokens of a prompt the peer is expected to have cached.
	CachedHeader = "X-Cascade-Cached"
	// HeldHeader is how many of the prompt's first tokens another replica is expected to hold, if these
	// are more than CachedHeader says: the peer may copy them. It is not sent when a request goes to
	// another replica after a loss.
	HeldHeader = "X-Cascade-Held"
	// ExpectedHeader is about how many tokens a prompt has, by what the sender knows of its
	// text: the estimate that the request was routed by knows only how long it is.
	ExpectedHeader = "X-Cascade-Expected"
	// MigrationHeader names the reservation that holds the stream's KV.
	MigrationHeader = "X-Cascade-Migration"
	// TenantHeader is the tenant of the client's request, for a peer that counts tenants.
	TenantHeader = "X-Cascade-Tenant"
	// OutputLimitHeader is in the answer to a client's first leg: how many tokens
	// the engine generates for the request at most.
	OutputLimitHeader = "X-Cascade-Output-Limit"
	// LegHeader is the engine's name for the leg: "<stream id>#<epoch>".
	LegHeader = "X-Cascade-Leg"
)

const (
	maxName  = 200     // bytes of the name of a stream, reservation or replica; engines take leg names of 256
	maxCount = 1 << 32 // tokens that a header can state
)

// legRequest describes a leg that is to be opened.
type legRequest struct {
	endpoint openai.Endpoint
	target   policies.Target
	header   http.Header // the client's
	body     *payload
	arrival  loadtracker.Arrival // with Input and Output if the leg is a later one

	plain       bool // the answer is no stream, or one that cannot be parsed
	passed      bool // it is passed through unparsed
	asksIDs     bool // the front end asks for token ids, and the client does not
	fetches     bool // the engine fetches the prompt's KV from another one
	keeps       bool // the engine keeps the prompt's KV for another one; its token is discarded
	frontEnd    policies.ReplicaID
	stream      *Stream          // of the own front end; nil for a peer's
	request     policies.Request // as it is now; ID is "" for one without a name
	root        prefix.Hash      // that the ids of its prompt extend
	minTokens   policies.Tokens  // min_tokens
	epoch       policies.Epoch
	tenant      string                    // of the client's request
	reservation string                    // of the KV blocks; "" for none
	held        policies.Tokens           // how many of the prompt's first tokens another replica holds, as the sender knows
	prompt      *knownPrompt              // of a first leg, for a prefix pull and ExpectedHeader; nil: neither
	firstText   *firstText                // corrects the leg's first text; nil where the client's text ends with a character
	notAfter    time.Time                 // a later first token is not used; zero: no bound
	losses      losses                    // of a first leg
	translate   func(io.Reader) io.Reader // the own engine's events, as dialect.Dialect.Open returns it
}

// name returns the engine's name for the leg, "" for none.
func (lr *legRequest) name() string {
	if lr.request.ID == "" {
		return ""
	}
	return lr.request.ID + "#" + strconv.FormatUint(uint64(lr.epoch), 10)
}

// transfers reports whether the engine gives KV to another engine by the leg, or fetches it before
// the leg's first token.
func (lr *legRequest) transfers() bool {
	return lr.keeps || lr.fetches || lr.arrival.HasKV && lr.reservation == ""
}

// headers returns the header fields for the engine or the peer that the request
// goes to.
func (lr *legRequest) headers() http.Header {
	var h http.Header
	if lr.target.Address == "" || lr.arrival.Input > 0 { // a later leg needs no estimate
		h = engineHeaders(lr.header)
	} else {
		h = peerHeaders(lr.header)
	}
	if lr.target.Address == "" {
		setRequestID(h)
		if leg := lr.name(); leg != "" {
			h[LegHeader] = []string{leg}
		}
		return h
	}
	h[ForwardHeader] = []string{string(lr.frontEnd)}
	if lr.request.ID != "" {
		h[RequestHeader] = []string{lr.request.ID}
		h[LegEpochHeader] = []string{strconv.FormatUint(uint64(lr.epoch), 10)}
	}
	h[FeaturesHeader] = []string{strconv.FormatUint(uint64(lr.request.Features), 10)}
	count := func(name string, n, least policies.Tokens) {
		if n >= least {
			h[name] = []string{strconv.FormatInt(int64(n), 10)}
		}
	}
	if lr.arrival.Input > 0 {
		count(PromptHeader, lr.arrival.Input, 1)
		count(OutputHeader, lr.arrival.Output, 0)
	} else {
		count(CachedHeader, lr.target.Cached, 1)
		count(HeldHeader, lr.target.Held, 1)
		if lr.prompt != nil {
			count(ExpectedHeader, lr.prompt.length, 1)
		}
	}
	if lr.tenant != "" {
		h[TenantHeader] = []string{lr.tenant}
	}
	if lr.reservation != "" {
		h[MigrationHeader] = []string{lr.reservation}
	}
	return h
}

// errNoForward is returned for a request to the peers' port that is not from a
// migrator.
var errNoForward = errors.New("this port is for migrators; clients use the replica's own address")

// readLegRequest reads the header fields of a peer's request. The error names the
// field that is wrong.
func readLegRequest(e openai.Endpoint, h http.Header) (*legRequest, error) {
	lr := &legRequest{endpoint: e, header: h, frontEnd: policies.ReplicaID(h.Get(ForwardHeader)), tenant: h.Get(TenantHeader), reservation: h.Get(MigrationHeader)}
	lr.request.ID = h.Get(RequestHeader)
	if lr.frontEnd == "" {
		return nil, errNoForward
	}
	for name, value := range map[string]string{ForwardHeader: string(lr.frontEnd), MigrationHeader: lr.reservation, RequestHeader: lr.request.ID} {
		if len(value) > maxName || strings.IndexFunc(value, func(r rune) bool { return r <= ' ' || r == 0x7f }) >= 0 {
			return nil, fmt.Errorf("%s: %.40q: must be a name of at most %d bytes", name, value, maxName)
		}
	}
	var err error
	number := func(name string, least, most uint64) uint64 {
		value := h.Get(name)
		if value == "" {
			return 0
		}
		n, bad := strconv.ParseUint(value, 10, 64)
		if bad != nil || n < least || n > most {
			err = fmt.Errorf("%s: %.40q: must be a number from %d to %d", name, value, least, most)
		}
		return n
	}
	lr.epoch = policies.Epoch(number(LegEpochHeader, 1, 1<<63))
	lr.request.Features = policies.Features(number(FeaturesHeader, 0, 1<<32-1))
	lr.arrival.Input = policies.Tokens(number(PromptHeader, 1, maxCount))
	lr.arrival.Output = policies.Tokens(number(OutputHeader, 0, maxCount))
	lr.arrival.Cached = policies.Tokens(number(CachedHeader, 0, maxCount))
	lr.held = policies.Tokens(number(HeldHeader, 0, maxCount))
	lr.arrival.Estimate = policies.Tokens(number(ExpectedHeader, 0, maxCount))
	switch {
	case err != nil:
		return nil, err
	case lr.request.ID != "" && (!strings.HasPrefix(lr.request.ID, string(lr.frontEnd)+"/") || lr.epoch == 0):
		return nil, fmt.Errorf("%s: %.40q: must begin with %q and come with %s", RequestHeader, lr.request.ID, lr.frontEnd+"/", LegEpochHeader)
	case lr.reservation != "" && (lr.request.ID == "" || lr.arrival.Input == 0):
		return nil, fmt.Errorf("%s: %.40q: requires %s and %s", MigrationHeader, lr.reservation, RequestHeader, PromptHeader)
	case lr.arrival.Input == 0 && lr.arrival.Output > 0:
		return nil, fmt.Errorf("%s: requires %s", OutputHeader, PromptHeader)
	}
	lr.arrival.HasKV = lr.reservation != ""
	return lr, nil
}

// laterLeg returns the request for a later leg of the stream, without a body. It
// carries the client's headers, and its length is known.
func (s *Stream) laterLeg(to policies.Target, epoch policies.Epoch, prompt, output int) *legRequest {
	return &legRequest{
		endpoint: s.cfg.Endpoint, target: to, header: s.header, frontEnd: s.server.cfg.Replica, stream: s, request: s.Request(), root: s.root, epoch: epoch, tenant: s.tenant,
		arrival: loadtracker.Arrival{Input: policies.Tokens(prompt), Output: policies.Tokens(output)},
	}
}
