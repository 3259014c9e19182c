// Package publicapi lists what clients may ask a replica for, and writes errors for them. Engines
// have more paths, for their operators: those that pause the engine, load into it, show its
// metrics or reach its memory stay closed to clients.
//
// The front end of a replica serves the list, and every published route table refuses the
// rest before a replica sees it (package resources): Envoys and the embedded proxy answer
// 404 or 405 themselves.
//
// Invariant: a path that Pattern matches is covered by its endpoint after percent-decoding
// (Endpoint.Covers), however a proxy was configured to normalise paths: no match contains a
// dot segment, an empty segment but the last, or an encoded delimiter.
package publicapi

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Endpoint is a method and the paths for which it is served.
type Endpoint struct {
	Method string
	// Path is what a decoded path must be; a segment "*" stands for one segment of printable
	// ASCII, the last one also for an empty segment.
	Path string
	// Body is true if such a request may have a body.
	Body bool
	// Computed is true if the engine's core computes the answer, in a time that depends on
	// the request; other answers begin at once.
	Computed bool
	// Text is true if the engine's HTTP server converts text for the answer, which is long work for a
	// long body.
	Text bool
	// Generates is true if such an answer has tokens, rather than scores or vectors of the input.
	Generates bool
}

// scoring are the paths of POST whose answers the engine's core computes without generating tokens.
var scoring = []string{"/v1/embeddings", "/v1/rerank", "/v2/rerank", "/v1/score", "/rerank", "/score", "/pooling", "/classify"}

// text and immediate are the paths of POST whose answers the engine's core does not compute: with Text, and without.
var (
	text      = []string{"/v1/completions/render", "/v1/chat/completions/render", "/v1/messages/count_tokens", "/tokenize", "/detokenize"}
	immediate = []string{"/v1/responses/*/cancel", "/ping"}
)

// Endpoints returns the API, that of OpenAI as engines serve it, the most used ones first.
func Endpoints() []Endpoint {
	all := []Endpoint{
		{Method: "POST", Path: "/v1/chat/completions", Body: true, Computed: true, Generates: true}, {Method: "POST", Path: "/v1/completions", Body: true, Computed: true, Generates: true},
		{Method: "GET", Path: "/health"}, {Method: "HEAD", Path: "/health"},
	}
	for _, at := range []string{"/v1/models", "/v1/models/*", "/v1/models/*/*", "/v1/responses/*", "/version", "/ping"} {
		all = append(all, Endpoint{Method: "GET", Path: at})
	}
	for _, at := range []string{"/v1/completions/render", "/v1/chat/completions/render",
		"/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech", "/v1/embeddings", "/v1/responses", "/v1/responses/*/cancel",
		"/v1/messages", "/v1/messages/count_tokens", "/v1/rerank", "/v2/rerank", "/v1/score",
		"/tokenize", "/detokenize", "/rerank", "/score", "/pooling", "/classify", "/ping"} {
		converts := slices.Contains(text, at)
		computed := !converts && !slices.Contains(immediate, at)
		all = append(all, Endpoint{Method: "POST", Path: at, Body: true, Text: converts, Computed: computed, Generates: computed && !slices.Contains(scoring, at)})
	}
	return all
}

// Methods returns the methods of the API, sorted.
func Methods() []string {
	all := make(map[string]bool)
	for _, e := range Endpoints() {
		all[e.Method] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// Bodiless returns the methods of which no request may have a body, sorted.
func Bodiless() []string {
	return slices.DeleteFunc(Methods(), func(method string) bool {
		return slices.ContainsFunc(Endpoints(), func(e Endpoint) bool { return e.Method == method && e.Body })
	})
}

// Covers reports whether the endpoint serves a decoded path.
func (e Endpoint) Covers(path string) bool {
	for want, rest, more := "", e.Path, true; more; {
		var have string
		var left bool
		want, rest, more = strings.Cut(rest, "/")
		have, path, left = strings.Cut(path, "/")
		if left != more || want != "*" && have != want || want == "*" && !plain(have, !more) {
			return false
		}
	}
	return true
}

// unsafe are the bytes that some server takes for a delimiter, or decodes once more.
const unsafe = `/\;?#%`

// plain reports whether a decoded segment may stand for a "*".
func plain(segment string, last bool) bool {
	return segment != "." && segment != ".." && (segment != "" || last) &&
		!strings.ContainsFunc(segment, func(r rune) bool { return r < ' ' || r > '~' || strings.ContainsRune(unsafe, r) })
}

// segment matches a segment of a raw path that may stand for a "*": a byte other than a
// dot after at most two dots, or three dots, and then anything. Only bytes that are common
// in names may be encoded: Envoy allows short expressions only.
const segment = `(?:\.{0,2}[!$&--0-:=@-[\]-~]|\.{3})(?:[!$&-.0-:=@-[\]-~]|%(?:2[0BCbc]|3[ADad]|40))*`

// Pattern returns a regular expression (RE2) for the raw paths, with or without a query,
// that a path covers, and whether one is needed: a path without "*" covers only itself. It
// must match from start to end.
func Pattern(path string) (expression string, needed bool) {
	quoted := regexp.QuoteMeta(path)
	prefix, open := strings.CutSuffix(quoted, `\*`)
	expression = strings.ReplaceAll(prefix, `\*`, segment)
	if open {
		expression += `(?:` + segment + `)?`
	}
	return expression + `(?:\?[ -~]*)?`, strings.Contains(path, "*")
}
