package proxy

import (
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/internal/publicapi"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// publicPath is a path of the public API.
type publicPath struct {
	pattern *regexp.Regexp // of the raw path with its query
	methods []string
}

// publicPaths returns the public API: what it lacks is refused before a body is read.
func publicPaths() (paths []publicPath) {
	at := make(map[string]int)
	for _, e := range publicapi.Endpoints() {
		i, known := at[e.Path]
		if !known {
			i = len(paths)
			at[e.Path] = i
			pattern, needed := publicapi.Pattern(e.Path)
			if !needed {
				pattern = regexp.QuoteMeta(e.Path) + `(?s:\?.*)?`
			}
			paths = append(paths, publicPath{pattern: regexp.MustCompile(`^(?:` + pattern + `)$`)})
		}
		paths[i].methods = append(paths[i].methods, e.Method)
	}
	return paths
}

// The methods of the public API, and those that take no body.
var methods, bodiless = publicapi.Methods(), publicapi.Bodiless()

// refuse answers a request that is not in the public API, or of a page that is not admitted, as
// Envoys do with the published routes. It reports whether it has.
func (x *exchange) refuse(target string) bool {
	origin, origins := x.r.Header.Get("Origin"), x.state.plan.Proxy.Origins
	if origin != "" && len(origins) > 0 && origins[0] != resources.AnyOrigin && !slices.Contains(origins, origin) {
		x.foreign = true
		return x.replyRefusal(http.StatusForbidden, "PermissionDeniedError", "pages of this origin are not admitted")
	}
	i := slices.IndexFunc(x.p.paths, func(p publicPath) bool { return p.pattern.MatchString(target) })
	switch {
	case x.p.cfg.everyPath:
		return false
	case i < 0:
		return x.replyRefusal(http.StatusNotFound, "NotFoundError", "path not served")
	case len(origins) > 0 && x.r.Method == http.MethodOptions && x.r.Header.Get("Access-Control-Request-Method") != "":
		h := x.w.Header()
		h.Set("Access-Control-Allow-Methods", strings.Join(methods, ", "))
		if asked := x.r.Header.Get("Access-Control-Request-Headers"); asked != "" {
			h.Set("Access-Control-Allow-Headers", asked)
		}
		h.Set("Access-Control-Max-Age", "7200") // the longest that Chromium keeps an answer, in seconds
		x.reply(http.StatusNoContent, "")
		return true
	case !slices.Contains(x.p.paths[i].methods, x.r.Method):
		allow := strings.Join(x.p.paths[i].methods, ", ")
		x.w.Header().Set("Allow", allow)
		return x.replyRefusal(http.StatusMethodNotAllowed, "MethodNotAllowedError",
			"method not served; this path takes "+allow)
	}
	if x.size > 0 && slices.Contains(bodiless, x.r.Method) {
		return x.replyRefusal(http.StatusBadRequest, "BadRequestError", x.r.Method+" takes no body")
	}
	return false
}

// exposed are the headers that pages of other origins may read.
var exposed = strings.Join([]string{"retry-after", "x-request-id", length.StageHeader, length.EpochHeader}, ", ")

// loadMetrics are the headers in which a replica reports its load.
var loadMetrics = []string{"Endpoint-Load-Metrics", "Endpoint-Load-Metrics-Bin", "Endpoint-Load-Metrics-Json"}

// editAnswer changes the headers of an answer: its stage and epoch are added, a replica's load
// is removed, and pages of admitted origins may read it.
func (x *exchange) editAnswer(h http.Header) {
	for _, name := range loadMetrics {
		delete(h, name)
	}
	if x.stage != nil {
		h[stageHeader], h[epochHeader] = x.stage.label, x.epoch
	}
	switch origins := x.state.plan.Proxy.Origins; {
	case len(origins) == 0 || x.foreign:
	case origins[0] == resources.AnyOrigin:
		h.Set("Access-Control-Allow-Origin", resources.AnyOrigin)
		h.Set("Access-Control-Expose-Headers", exposed)
		h.Del("Access-Control-Allow-Credentials")
	default:
		h.Del("Access-Control-Allow-Origin")
		if origin := x.r.Header.Get("Origin"); origin != "" {
			h.Set("Access-Control-Allow-Origin", origin)
		}
		h.Set("Access-Control-Allow-Credentials", "true")
		h.Set("Access-Control-Expose-Headers", exposed)
		h.Add("Vary", "origin")
	}
}

var (
	stageHeader = http.CanonicalHeaderKey(length.StageHeader)
	epochHeader = http.CanonicalHeaderKey(length.EpochHeader)
)
