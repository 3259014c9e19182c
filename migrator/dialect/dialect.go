// Package dialect is the boundary between the migrator and inference engines: what the engines of one
// kind say and understand, behind one interface. A package below it speaks for each kind, and dialecttest
// checks them all. No other package of the migrator names an engine.
//
// The clients speak the OpenAI API, whichever engine serves them. A dialect says which members engines add
// to it, writes the requests that continue a stream from its token ids, and reads metrics. It has no
// connection. The driver is migrator/frontend, which asks an engine what it is (Ask).
//
// # Adding an engine
//
// Write a package with a Dialect, add it to package known and to the table of dialecttest. An engine that
// hands the KV of requests over to another one also implements KV.
package dialect

import (
	"errors"
	"io"
	"regexp"

	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
)

// Dialect is what the engines of one kind have in common. Its methods are safe for concurrent use.
type Dialect interface {
	// Capabilities returns what the engines can do; it is the same at each call.
	Capabilities() Capabilities
	// Continue returns the body of a request that continues token ids; nil if the engines take none for it.
	Continue(q *openai.Resume, c Continuation) []byte
	// Open returns the engine's path for a body of an endpoint. translate turns the events of the engine's answer
	// into those of the endpoint; it is nil if they are.
	Open(e openai.Endpoint, body []byte) (path string, translate func(events io.Reader) io.Reader)
	// Tokenize returns the call whose answer has the token ids of a request's prompt. Its Body is nil if
	// they could differ from what the engine makes of the request itself, or if the engine would run a chat
	// template of the client's: what it does with one, it does once, when it serves the request.
	Tokenize(r *openai.Request) Call
	// Load decodes an answer of Capabilities.LoadPath. It takes whatever an engine or something else may
	// answer; the error is ErrNoMetrics if nothing in it is known.
	Load(text []byte) (engineinfo.Metrics, error)
}

// Capabilities is what the engines of one kind can do, and where they say what.
type Capabilities struct {
	// Name is the kind's, in lower case, as the engines state it in /v1/models (owned_by).
	Name string
	// Fields are the members of requests' bodies.
	Fields *openai.Fields
	// VersionPath and LoadPath are the resources with the version ("version" of an object) and the load. HealthPath
	// answers 200 while the engine serves: at once, also while it computes. An engine that has not said of which kind it
	// is answers so at /health.
	VersionPath, LoadPath, HealthPath string
	// Counters begin the lines of an answer of LoadPath that change with every step of the engine's core,
	// whether or not a request gets a token. They stand still while it hangs.
	Counters []string
	// ChatsByIDs says that streamed chats bring token ids only to requests that Continue their prompt's ids.
	ChatsByIDs bool
	// Text is the path of the text in an answer of /detokenize.
	Text string
	// OutputLimit finds the limit of output tokens in the refusal of a request whose min_tokens is over it,
	// as its only submatch of at most nine digits; nil: the engines do not state it.
	OutputLimit *regexp.Regexp
	// LastID finds the greatest token id of the vocabulary in the refusal of a logit_bias for a greater one, likewise;
	// nil: the engines themselves refuse prompts with such ids.
	LastID *regexp.Regexp
}

// Configurable is a Dialect that depends on how an engine was started.
type Configurable interface {
	// Configured returns the dialect of an engine by its answer of VersionPath.
	Configured(info []byte) Dialect
}

// Call is a POST request of JSON.
type Call struct {
	Path string
	Body []byte
	// Tokens is the path of the list of token ids in the answer.
	Tokens string
	// Computes says that the engine computes the prompt before it answers. Such a call is made only for a request that
	// cannot move without the ids.
	Computes bool
}

// Continuation is a request for what follows token ids.
type Continuation struct {
	IDs    []uint32 // nil: a KV.Adopt adds where the engine has them
	Output int      // how many of the ids were generated
	// Warm asks for the KV of the ids: a whole answer of one token, which is discarded.
	Warm bool
	// Fetch is what KV.Kept has returned for exactly these ids: the engine fetches their KV. nil: it
	// computes it.
	Fetch []byte
}

// KV is a Dialect whose engines hand the KV of requests over to each other.
type KV interface {
	Dialect
	// Keep returns the body of a request to /v1/completions, whichever endpoint the stream has, that makes
	// the engine that runs the stream keep the KV of token ids for another engine: for handoff.Lease at
	// least. It finds them in its prefix cache, and its one token is discarded.
	Keep(q *openai.Resume, ids []uint32) []byte
	// Kept returns the parameters, as the engine wrote them, with which another engine fetches the KV of
	// exactly so many token ids, from an answer to Keep, and the name that the engine's KV connector gives
	// itself, "" for none. The error is engineinfo.ErrNoConnector, or says why no engine may be given them:
	// with fewer or more ids than they are for, it answers with wrong tokens or dies.
	Kept(answer []byte, ids int) (params []byte, connector string, err error)
	// Transfers says what a leg's body asks of the engine's KV connector: to keep KV for another engine, or
	// to fetch it from one. Either way the engine need not compute it.
	Transfers(body []byte) (keeps, fetches bool)
	// Adopt returns a body of Continue without IDs with the parameters of the KV that the engine holds, and
	// with how many of the ids are the prompt's: the engine completes a character that the output has
	// begun, not one of the prompt. The error says what is wrong with the body or the parameters.
	Adopt(body, params []byte, prompt int) ([]byte, error)
}

// KVOf returns d's KV. That of a dialect without one keeps and fetches nothing.
func KVOf(d Dialect) KV {
	if kv, ok := d.(KV); ok {
		return kv
	}
	return noKV{d}
}

// noKV is a dialect whose engines hand no KV over.
type noKV struct{ Dialect }

func (noKV) Keep(*openai.Resume, []uint32) []byte { return []byte("{}") } // no engine gets it: Ask says Absent

func (noKV) Kept([]byte, int) ([]byte, string, error) { return nil, "", engineinfo.ErrNoConnector }

func (noKV) Transfers([]byte) (keeps, fetches bool) { return false, false }

func (noKV) Adopt([]byte, []byte, int) ([]byte, error) {
	return nil, errors.New("the engine adopts no KV")
}
