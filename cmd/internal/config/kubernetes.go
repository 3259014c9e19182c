package config

import (
	"regexp"
	"strings"
)

const (
	kubernetesScheme  = "kubernetes://"
	maxKubernetesName = 40 // bytes; names of objects begin with it
)

// dnsLabel matches what Kubernetes allows as the name of a namespace.
var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// KubernetesState returns the namespace and the name that state names; ok is false where it names
// no Kubernetes.
func (f *Fleet) KubernetesState() (namespace, name string, ok bool) {
	rest, ok := strings.CutPrefix(f.State, kubernetesScheme)
	if !ok {
		return "", "", false
	}
	namespace, name, _ = strings.Cut(rest, "/")
	return namespace, name, true
}

// RemoteState reports whether state names etcd or Kubernetes, which control planes on several
// hosts share. It is false for a directory, and without a state.
func (f *Fleet) RemoteState() bool {
	_, _, etcd := f.EtcdState()
	_, _, kubernetes := f.KubernetesState()
	return etcd || kubernetes
}

// validateKubernetes checks a state in Kubernetes.
func validateKubernetes(c *checker, namespace, name string) {
	if !dnsLabel.MatchString(namespace) || !dnsLabel.MatchString(name) || len(name) > maxKubernetesName {
		c.fail("state", "must have the form kubernetes://NAMESPACE/NAME, of lower-case letters, digits and -, with a NAME of up to %d that no other fleet of the namespace has, as in kubernetes://cascade/fleet-a", maxKubernetesName)
	}
}
