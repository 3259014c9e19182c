package frontend

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/loadtracker"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
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
	// MigrationHeader names the reservation that holds the stream's KV.
	MigrationHeader = "X-Cascade-Migration"
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
	target   Target
	header   http.Header // the client's
	body     *payload
	arrival  loadtracker.Arrival // with Input and Output if the leg is a later one

	plain       bool // the answer is no stream, or one that cannot be parsed
	frontEnd    policies.ReplicaID
	stream      *Stream          // of the own front end; nil for a peer's
	request     policies.Request // as it is now; ID is "" for one without a name
	minTokens   policies.Tokens  // min_tokens
	epoch       policies.Epoch
	reservation string        // of the KV blocks; "" for none
	hangTimeout time.Duration // how long the engine may pause after the first token; 0 for the idle timeout
}

// name returns the engine's name for the leg, "" for none.
func (o *legRequest) name() string {
	if o.request.ID == "" {
		return ""
	}
	return o.request.ID + "#" + strconv.FormatUint(uint64(o.epoch), 10)
}

// headers returns the header fields for the engine or the peer that the request
// goes to.
func (o *legRequest) headers() http.Header {
	var h http.Header
	switch {
	case o.arrival.Input > 0:
		h = resumeHeaders(o.header)
	case o.target.Address == "":
		h = engineHeaders(o.header)
	default:
		h = peerHeaders(o.header)
	}
	if o.target.Address == "" {
		if leg := o.name(); leg != "" {
			h[LegHeader] = []string{leg}
		}
		return h
	}
	h[ForwardHeader] = []string{string(o.frontEnd)}
	if o.request.ID != "" {
		h[RequestHeader] = []string{o.request.ID}
		h[LegEpochHeader] = []string{strconv.FormatUint(uint64(o.epoch), 10)}
	}
	h[FeaturesHeader] = []string{strconv.FormatUint(uint64(o.request.Features), 10)}
	if o.arrival.Input > 0 {
		h[PromptHeader] = []string{strconv.FormatInt(int64(o.arrival.Input), 10)}
		h[OutputHeader] = []string{strconv.FormatInt(int64(o.arrival.Output), 10)}
	}
	if o.reservation != "" {
		h[MigrationHeader] = []string{o.reservation}
	}
	return h
}

// errNoForward is returned for a request to the peers' port that is not from a
// migrator.
var errNoForward = errors.New("this port is for migrators; clients use the replica's own address")

// readLegRequest reads the header fields of a peer's request. The error names the
// field that is wrong.
func readLegRequest(e openai.Endpoint, h http.Header) (*legRequest, error) {
	o := &legRequest{endpoint: e, header: h, frontEnd: policies.ReplicaID(h.Get(ForwardHeader)), reservation: h.Get(MigrationHeader)}
	o.request.ID = h.Get(RequestHeader)
	if o.frontEnd == "" {
		return nil, errNoForward
	}
	for name, value := range map[string]string{ForwardHeader: string(o.frontEnd), MigrationHeader: o.reservation, RequestHeader: o.request.ID} {
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
	o.epoch = policies.Epoch(number(LegEpochHeader, 1, 1<<63))
	o.request.Features = policies.Features(number(FeaturesHeader, 0, 1<<32-1))
	o.arrival.Input = policies.Tokens(number(PromptHeader, 1, maxCount))
	o.arrival.Output = policies.Tokens(number(OutputHeader, 0, maxCount))
	switch {
	case err != nil:
		return nil, err
	case o.request.ID != "" && (!strings.HasPrefix(o.request.ID, string(o.frontEnd)+"/") || o.epoch == 0):
		return nil, fmt.Errorf("%s: %.40q: must begin with %q and come with %s", RequestHeader, o.request.ID, o.frontEnd+"/", LegEpochHeader)
	case o.reservation != "" && (o.request.ID == "" || o.arrival.Input == 0):
		return nil, fmt.Errorf("%s: %.40q: requires %s and %s", MigrationHeader, o.reservation, RequestHeader, PromptHeader)
	case o.arrival.Input == 0 && o.arrival.Output > 0:
		return nil, fmt.Errorf("%s: requires %s", OutputHeader, PromptHeader)
	}
	o.arrival.HasKV = o.reservation != ""
	return o, nil
}

// laterLeg returns the request for a later leg of the stream, without a body. It
// carries the client's headers, and its length is known.
func (s *Stream) laterLeg(to Target, epoch policies.Epoch, prompt, output int) *legRequest {
	return &legRequest{
		endpoint: s.endpoint, target: to, header: s.header, frontEnd: s.server.cfg.Replica, stream: s, request: s.Request(), epoch: epoch,
		arrival:     loadtracker.Arrival{Input: policies.Tokens(prompt), Output: policies.Tokens(output)},
		hangTimeout: s.hangTimeout(),
	}
}

// hangTimeout returns how long a leg may pause before its engine counts as lost;
// 0 stands for the idle timeout.
func (s *Stream) hangTimeout() time.Duration {
	if s.server.cfg.Rescuer == nil || s.request.Features&^policies.MinTokens != 0 {
		return 0
	}
	return s.server.cfg.HangTimeout
}
