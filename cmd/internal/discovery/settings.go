package discovery

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/policies"
)

// Prefix is that of the labels and annotations that configure a Pod's replica.
const Prefix = "cascadeinfer.com/"

// MaxSetting bounds the value of a label or annotation, in bytes. Callers may cut longer ones behind
// MaxSetting+1 bytes: they are refused all the same.
const MaxSetting = 256

// ports are where a Pod serves.
type ports struct{ clients, peers, admin, engine int }

// setting is one label or annotation: what it sets, and what its values may be.
type setting struct {
	apply func(r *config.Replica, p *ports, value string) bool // false: the value is bad
	want  string                                               // what a good value is
}

const wantPort = "must be a port, 1 to 65535"

// settings are all labels and annotations, by name without the prefix. deploy/kubernetes
// documents each.
var settings = map[string]setting{
	"model": {func(r *config.Replica, _ *ports, v string) bool {
		r.Model = v
		return v != "" && strings.IndexFunc(v, func(c rune) bool { return c < ' ' || c == 0x7f }) < 0
	}, "must be a model of the fleet file"},
	"port":        {func(_ *config.Replica, p *ports, v string) bool { return parseNumber(v, 1, 65535, &p.clients) }, wantPort},
	"peer-port":   {func(_ *config.Replica, p *ports, v string) bool { return parseNumber(v, 1, 65535, &p.peers) }, wantPort},
	"admin-port":  {func(_ *config.Replica, p *ports, v string) bool { return parseNumber(v, 0, 65535, &p.admin) }, "must be a port, or 0 for none"},
	"engine-port": {func(_ *config.Replica, p *ports, v string) bool { return parseNumber(v, 1, 65535, &p.engine) }, wantPort},
	"host":        {func(r *config.Replica, _ *ports, v string) bool { r.Host = v; return isDNSName(v) }, "must be the name of a host"},
	// A profile may also be a file, but whoever may create Pods must not choose which files the
	// control plane reads.
	"profile": {func(r *config.Replica, _ *ports, v string) bool {
		r.Profile = v
		return isDNSName(v) && !strings.HasSuffix(v, ".json")
	}, `must be the name of a built-in profile ("cascade profile")`},
	"tp": {func(r *config.Replica, _ *ports, v string) bool { return parseNumber(v, 1, 64, &r.TP) }, "must be a number of ranks, 1 to 64"},
	"kv-tokens": {func(r *config.Replica, _ *ports, v string) bool {
		return parseNumber(v, 1, 1<<40, &r.KVTokens)
	}, "must be a number of tokens, at least 1"},
	"batch": {func(r *config.Replica, _ *ports, v string) bool { return parseNumber(v, 1, 1<<20, &r.Batch) }, "must be a number of sequences, at least 1"},
	"role":  {func(r *config.Replica, _ *ports, v string) bool { r.Role = v; return v == config.RolePrefill }, `must be "prefill", or absent`},
	"drain": {func(r *config.Replica, _ *ports, v string) bool {
		r.Drain = v == "true"
		return v == "true" || v == "false"
	}, `must be "true" or "false"`},
}

// parseNumber parses a decimal number from lo to hi, without a sign, into to.
func parseNumber[T int | policies.Tokens](s string, lo, hi int64, to *T) bool {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < lo || n > hi || s[0] == '+' {
		return false
	}
	*to = T(n)
	return true
}

// configure returns the replica of a Pod by its settings, or an error that says what to
// change. port is where it serves clients, unless a setting says otherwise. Drain is set
// only where a setting sets it.
func (r Rules) configure(pod Pod, port int) (config.Replica, error) {
	id, err := ReplicaID(pod.Name, pod.UID)
	if err != nil {
		return config.Replica{}, err
	}
	out := config.Replica{ID: id, Host: pod.Node}
	at := ports{port, r.PeerPort, r.AdminPort, r.EnginePort}
	for _, name := range slices.Sorted(maps.Keys(pod.Settings)) {
		value := pod.Settings[name]
		s, known := settings[strings.TrimPrefix(name, Prefix)]
		switch {
		case !known:
			return out, fmt.Errorf("annotation %.80s of Pod %s: unknown; there are %s", name, pod.Name, strings.Join(slices.Sorted(maps.Keys(settings)), ", "))
		case len(value) > MaxSetting || !s.apply(&out, &at, value):
			return out, fmt.Errorf("annotation %s of Pod %s: %.60q: %s", name, pod.Name, value, s.want)
		}
	}
	if err := r.setModel(&out, pod); err != nil {
		return out, err
	}
	ip, err := netip.ParseAddr(pod.IP)
	switch {
	case pod.IP == "":
		return out, fmt.Errorf("Pod %s has no address yet", pod.Name)
	case err != nil || ip.Zone() != "" || ip.IsUnspecified() || ip.IsMulticast():
		return out, fmt.Errorf("Pod %s: address %.60q: must be an IP address of a host", pod.Name, pod.IP)
	case !isDNSName(out.Host):
		return out, fmt.Errorf("Pod %s: node %.60q: must be the name of a node", pod.Name, out.Host)
	case at.clients == 0:
		return out, fmt.Errorf("Pod %s: its port for clients is unknown: set annotation %sport", pod.Name, Prefix)
	case at.clients == at.peers || at.clients == at.admin || at.peers == at.admin:
		return out, fmt.Errorf("Pod %s: its ports for clients (%d), peers (%d) and admin (%d) must differ: set %sport, peer-port and admin-port", pod.Name, at.clients, at.peers, at.admin, Prefix)
	}
	join := func(port int) string { return net.JoinHostPort(ip.String(), strconv.Itoa(port)) }
	out.Address, out.Peer = join(at.clients), join(at.peers)
	if at.admin != 0 {
		out.Admin = join(at.admin)
	}
	// The engine shares the Pod's network, and nothing else may reach it.
	out.Engine = "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(at.engine))
	return out, nil
}

// setModel checks the model of a replica, which may be left out where the fleet has one.
func (r Rules) setModel(out *config.Replica, pod Pod) error {
	names := make([]string, len(r.Base.Models))
	for i, m := range r.Base.Models {
		names[i] = m.Name
	}
	switch {
	case out.Model == "" && len(names) == 1:
		out.Model = names[0]
	case out.Model == "":
		return fmt.Errorf("Pod %s: the fleet has several models: set annotation %smodel to one of %q", pod.Name, Prefix, names)
	case !slices.Contains(names, out.Model):
		return fmt.Errorf("annotation %smodel of Pod %s: %.60q: must be one of %q, the models of the fleet file", Prefix, pod.Name, out.Model, names)
	}
	return nil
}
