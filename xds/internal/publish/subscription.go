package publish

import (
	"maps"
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// stream is one xDS stream of a node.
type stream struct {
	node  *node // nil until the first request
	types map[string]*subscription
}

func (s *stream) subscription(typ string) *subscription {
	sub := s.types[typ]
	if sub == nil {
		sub = new(subscription)
		s.types[typ] = sub
	}
	return sub
}

// subscription is the state of one type on a stream: the subscribed names, the sent
// responses and the acknowledged versions.
type subscription struct {
	begun    bool
	sotw     bool // a request lists all names, and answers the last response
	legacy   bool // SotW: wildcard because no name was ever given
	wildcard bool
	names    map[string]bool
	applied  map[string]string // acknowledged versions by name
	sent     []response        // not replied to yet, oldest first
	refused  bool              // the last reply was a NACK
}

// maxSent bounds the unanswered responses that are remembered.
const maxSent = 64

// response is a response that was sent.
type response struct {
	nonce    string
	versions []version
	removed  []string
	complete bool           // SotW: resources that it lacks do not exist
	epoch    policies.Epoch // of the plan in it; 0: none
}

func deltaResponse(resp *discoveryv3.DeltaDiscoveryResponse) response {
	r := response{nonce: resp.GetNonce(), removed: resp.GetRemovedResources()}
	r.versions = make([]version, 0, len(resp.GetResources()))
	for _, res := range resp.GetResources() {
		r.versions = append(r.versions, version{name: res.GetName(), version: res.GetVersion()})
		if resp.GetTypeUrl() == resources.RoutingType {
			r.epoch = resources.RoutingEpoch(res.GetResource().GetValue())
		}
	}
	return r
}

// sotwResponse hashes the bodies, which takes a while.
func sotwResponse(resp *discoveryv3.DiscoveryResponse) response {
	typ := resp.GetTypeUrl()
	r := response{nonce: resp.GetNonce(), complete: typ == resources.ClusterType || typ == resources.ListenerType}
	for _, a := range resp.GetResources() {
		r.versions = append(r.versions, version{name: nameOf(a.GetValue()), version: resources.Version(a.GetValue())})
	}
	return r
}

// applyDelta applies a request of the incremental protocol.
func (u *subscription) applyDelta(req *discoveryv3.DeltaDiscoveryRequest) {
	subscribe := req.GetResourceNamesSubscribe()
	if !u.begun {
		u.begun = true
		u.names = make(map[string]bool)
		u.applied = make(map[string]string, len(req.GetInitialResourceVersions()))
		maps.Copy(u.applied, req.GetInitialResourceVersions())
		u.wildcard = len(subscribe) == 0
	}
	for _, name := range subscribe {
		if name == "*" {
			u.wildcard = true
		} else {
			u.names[name] = true
		}
	}
	for _, name := range req.GetResourceNamesUnsubscribe() {
		if name == "*" {
			u.wildcard = false
			continue
		}
		delete(u.names, name)
		if !u.wildcard {
			delete(u.applied, name)
		}
	}
}

// applySotW applies a request of the state-of-the-world protocol.
func (u *subscription) applySotW(req *discoveryv3.DiscoveryRequest) {
	names := req.GetResourceNames()
	if !u.begun {
		u.begun, u.sotw = true, true
		u.applied = make(map[string]string)
		u.legacy = len(names) == 0
	}
	u.legacy = u.legacy && len(names) == 0
	u.wildcard = u.legacy
	u.names = make(map[string]bool, len(names))
	for _, name := range names {
		if name == "*" {
			u.wildcard = true
		} else {
			u.names[name] = true
		}
	}
	if !u.wildcard {
		maps.DeleteFunc(u.applied, func(name, _ string) bool { return !u.names[name] })
	}
}

// addSent records a response.
func (u *subscription) addSent(r response) {
	u.sent = append(u.sent, r)
	u.sent = u.sent[max(0, len(u.sent)-maxSent):]
}

// takeSent removes the response that a request answers and returns it. A SotW
// client answers only the last one and skips those before it.
func (u *subscription) takeSent(nonce string) (r response, ok bool) {
	i := slices.IndexFunc(u.sent, func(r response) bool { return r.nonce == nonce })
	if nonce == "" || i < 0 {
		return response{}, false // a change of subscription
	}
	r = u.sent[i]
	from := i
	if u.sotw {
		from = 0
	}
	u.sent = slices.Delete(u.sent, from, i+1)
	return r, true
}

// acknowledge records an ACK, and returns the response that it answers.
func (u *subscription) acknowledge(nonce string) (r response) {
	r, ok := u.takeSent(nonce)
	if !ok {
		return r
	}
	u.refused = false
	if r.complete {
		clear(u.applied)
	}
	for _, v := range r.versions {
		u.applied[v.name] = v.version
	}
	for _, name := range r.removed {
		delete(u.applied, name)
	}
	return r
}

// isBehind reports whether the client lacks a resource of the set that it
// subscribes to, still has one that the set lacks, or has not replied to all
// responses.
func (u *subscription) isBehind(v targetVersions, typ string) bool {
	lacks := func(r *resources.Resource) bool { return u.applied[r.Name] != r.Version }
	if len(u.sent) > 0 {
		return true
	}
	for name := range u.names {
		if r := v.set.Get(typ, name); r != nil && lacks(r) {
			return true
		}
	}
	if u.wildcard {
		for _, r := range v.listedOf(typ) {
			if lacks(r) {
				return true
			}
		}
	}
	if u.sotw {
		return false // not every type can announce removals
	}
	for name := range u.applied {
		if v.set.Get(typ, name) == nil && (u.wildcard || u.names[name]) {
			return true
		}
	}
	return false
}

// targetVersions is a set, prepared for comparison with many subscriptions.
type targetVersions struct {
	set    resources.Set
	types  []string
	listed map[string][]*resources.Resource // by type
	// unanswered holds the ids of nodes whose replies are not known yet.
	unanswered map[string]bool
}

func newVersions(set resources.Set, types []string) targetVersions {
	return targetVersions{set: set, types: types, listed: make(map[string][]*resources.Resource), unanswered: make(map[string]bool)}
}

// listedOf returns the resources of a type that a wildcard is for.
func (v targetVersions) listedOf(typ string) []*resources.Resource {
	if v.listed[typ] == nil {
		v.listed[typ] = slices.DeleteFunc(v.set.All(typ), func(r *resources.Resource) bool { return r.Unlisted })
	}
	return v.listed[typ]
}

func (v targetVersions) includes(typ string) bool { return slices.Contains(v.types, typ) }

// nameOf returns the name of an encoded resource, which is field 1 of every
// type that is served.
func nameOf(body []byte) string {
	num, typ, n := protowire.ConsumeTag(body)
	if n < 0 || num != 1 || typ != protowire.BytesType {
		return ""
	}
	name, n := protowire.ConsumeBytes(body[n:])
	if n < 0 {
		return ""
	}
	return string(name)
}
