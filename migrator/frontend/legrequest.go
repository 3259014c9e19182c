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

// The headers that migrators and engines tell each other what a leg is with.
// All begin with x-cascade-, which no client's request keeps.
const (
	// ForwardHeader names the replica whose front owns the request. A peer never
	// forwards a request that carries it, and takes none without it.
	ForwardHeader = "X-Cascade-Forward"
	// RequestHeader is the stream's id at its front. A request without one (a
	// warm-up) is served and counted, and can neither be named nor moved.
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
	MigrationHeader = "X-Cascade-Move"
	// LegHeader is the engine's name of the leg: "<stream id>#<epoch>".
	LegHeader = "X-Cascade-Leg"
)

const (
	maxName  = 200     // bytes of a stream's id, a move's or a replica's; engines take legs of 256
	maxCount = 1 << 32 // tokens that a header can state
)

// legRequest is a leg that is to be opened: what of, for whom, and where.
type legRequest struct {
	endpoint openai.Endpoint
	target   Target
	header   http.Header // the client's
	body     *payload
	arrival  loadtracker.Arrival // its Input and Output say that the leg is a later one

	plain       bool // the answer is to be no stream, or one that is not understood
	frontEnd    policies.ReplicaID
	stream      *Stream          // of the own front; nil for a peer's
	request     policies.Request // as it was when the leg was ordered; ID is "" for one without a name
	minTokens   policies.Tokens  // min_tokens
	epoch       policies.Epoch
	reservation string        // names the reservation; "" for none
	hangTimeout time.Duration // how long the engine may pause once it has begun; 0 for as long as before
}

// name is the engine's name for what is ordered, "" for none.
func (o *legRequest) name() string {
	if o.request.ID == "" {
		return ""
	}
	return o.request.ID + "#" + strconv.FormatUint(uint64(o.epoch), 10)
}

// headers are the header fields for the engine or the peer that the order goes to.
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

// errNoForward says that a request to the peers' port is not a migrator's.
var errNoForward = errors.New("this port is for migrators; clients use the replica's own address")

// readLegRequest reads the fields of a peer's request. Its error names the one that
// is wrong.
func readLegRequest(e openai.Endpoint, h http.Header) (*legRequest, error) {
	o := &legRequest{endpoint: e, header: h, frontEnd: policies.ReplicaID(h.Get(ForwardHeader)), reservation: h.Get(MigrationHeader)}
	o.request.ID = h.Get(RequestHeader)
	if o.frontEnd == "" {
		return nil, errNoForward
	}
	for name, value := range map[string]string{ForwardHeader: string(o.frontEnd), MigrationHeader: o.reservation, RequestHeader: o.request.ID} {
		if len(value) > maxName || strings.IndexFunc(value, func(r rune) bool { return r <= ' ' || r == 0x7f }) >= 0 {
			return nil, fmt.Errorf("%s %.40q is no name of at most %d bytes", name, value, maxName)
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
			err = fmt.Errorf("%s %.40q is no number from %d to %d", name, value, least, most)
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
		return nil, fmt.Errorf("%s %.40q is not one of %q, or has no %s", RequestHeader, o.request.ID, o.frontEnd, LegEpochHeader)
	case o.reservation != "" && (o.request.ID == "" || o.arrival.Input == 0):
		return nil, fmt.Errorf("%s %.40q needs %s and %s", MigrationHeader, o.reservation, RequestHeader, PromptHeader)
	case o.arrival.Input == 0 && o.arrival.Output > 0:
		return nil, fmt.Errorf("%s needs %s", OutputHeader, PromptHeader)
	}
	o.arrival.HasKV = o.reservation != ""
	return o, nil
}

// laterLeg is the request of a later leg of the stream, without a body. The client's
// headers go with it, and its length is known.
func (s *Stream) laterLeg(to Target, epoch policies.Epoch, prompt, output int) *legRequest {
	return &legRequest{
		endpoint: s.endpoint, target: to, header: s.header, frontEnd: s.server.cfg.Replica, stream: s, request: s.Request(), epoch: epoch,
		arrival:     loadtracker.Arrival{Input: policies.Tokens(prompt), Output: policies.Tokens(output)},
		hangTimeout: s.hangTimeout(),
	}
}

// hangTimeout is how long a leg may pause before its engine counts as lost; 0
// stands for the idle timeout.
func (s *Stream) hangTimeout() time.Duration {
	if s.server.cfg.Rescuer == nil || s.request.Features&^policies.MinTokens != 0 {
		return 0
	}
	return s.server.cfg.HangTimeout
}
