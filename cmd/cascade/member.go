package main

import (
	"cmp"
	"log/slog"

	"github.com/cascadeinfer/cascade/cmd/wire"
)

// member is what a daemon of a fleet begins with.
type member struct {
	log *slog.Logger
	id  keyring
	// control is host:port of the control plane.
	control string
}

// member sets a daemon up; control overrides control.listen of the file where
// it is not empty. Its id must be closed.
func (s *settings) member(fleet wire.Fleet, who component, control string) (member, error) {
	log, err := s.logger()
	if err != nil {
		return member{}, err
	}
	id, err := newKeyring(fleet.TLS(who.role, cmp.Or(who.name, controlName(fleet.Fleet))), who, log)
	return member{log: log, id: id, control: cmp.Or(control, fleet.Fleet.Control.Listen)}, err
}
