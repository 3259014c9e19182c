package wiring

import "github.com/cascadeinfer/cascade/policies/identity"

// ControlCertificate is the name by which the certificate of this control plane
// is found, and which it must carry where files are by name: control.name, or
// what stands for it among several. One that is alone and has no name is
// "control".
func (f *Fleet) ControlCertificate() string {
	if f.Fleet.Control.Name == "" && len(f.Fleet.Control.Peers) == 0 {
		return string(identity.Control)
	}
	return f.controlPlaneName()
}

// ControlCertificates are those names of all control planes that the file knows,
// the one of control.listen first. Peers have the names that they get when they
// are started with a --listen and no --name.
func (f *Fleet) ControlCertificates() []string {
	names := []string{f.ControlCertificate()}
	for _, address := range f.ControlPlanes()[1:] {
		peer := *f
		peer.Fleet.Control.Name, peer.Fleet.Control.Listen = "", address
		names = append(names, peer.controlPlaneName())
	}
	return names
}
