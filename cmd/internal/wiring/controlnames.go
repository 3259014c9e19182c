package wiring

import "github.com/cascadeinfer/cascade/internal/identity"

// ControlCertificate returns the name that stands for {name} in the paths of this
// control plane's certificate, and that the certificate must carry: control.name or,
// with several control planes, its default. An only control plane without a name is
// "control".
func (f *Fleet) ControlCertificate() string {
	if f.Fleet.Control.Name == "" && len(f.Fleet.Control.Peers) == 0 {
		return string(identity.Control)
	}
	return f.controlPlaneName()
}

// ControlCertificates returns these names for all control planes of the file, that
// of control.listen first. Peers have the names that they get when they are started
// with --listen and without --name.
func (f *Fleet) ControlCertificates() []string {
	names := []string{f.ControlCertificate()}
	for _, address := range f.ControlPlanes()[1:] {
		peer := *f
		peer.Fleet.Control.Name, peer.Fleet.Control.Listen = "", address
		names = append(names, peer.controlPlaneName())
	}
	return names
}
