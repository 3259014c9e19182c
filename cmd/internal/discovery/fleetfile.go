package discovery

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"

	"github.com/goccy/go-yaml"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/atomicfile"
)

// maxBase bounds a fleet file without replicas.
const maxBase = 1 << 20

// FleetFile is a fleet file whose replicas are discovered: the text of a file without
// replicas, completed with those of a decision. The replicas of an earlier process are
// read back from it, so that a restart, or a start while the API server is away, begins
// where that one ended.
type FleetFile struct {
	// Base is the path of the file without replicas, Path that of the complete one, in
	// another directory or under another name.
	Base, Path string
}

// ReadBase returns the text of the file without replicas, and what it says. A file that
// would not let discovery change the replicas is an error.
func (f FleetFile) ReadBase() ([]byte, config.Fleet, error) {
	text, err := atomicfile.Read(f.Base, maxBase)
	if err != nil {
		return nil, config.Fleet{}, err
	}
	fleet, err := config.ReadBase(text)
	if err != nil {
		return nil, config.Fleet{}, fmt.Errorf("%s: %w", f.Base, err)
	}
	if !fleet.Control.AnyRemoval {
		return nil, config.Fleet{}, fmt.Errorf("%s: control.any_removal: must be true: Pods that are gone cannot be kept, and without it a fleet that loses more than half of them at once would wait for \"cascade config check --confirm\"", f.Base)
	}
	return text, fleet, nil
}

// Replicas returns those of the complete file; none if there is no file yet. An error
// says that the file cannot be read.
func (f FleetFile) Replicas() ([]config.Replica, error) {
	fleet, err := config.Load(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return fleet.Replicas, err
}

// Write replaces the complete file, unless it is as it should be already. What the
// control plane would refuse is not written. It reports whether the file was written.
func (f FleetFile) Write(base []byte, replicas []config.Replica) (written bool, err error) {
	text, err := render(base, replicas)
	if err != nil {
		return false, fmt.Errorf("%s completed with %d replicas: %w", f.Base, len(replicas), err)
	}
	if present, err := atomicfile.Read(f.Path, int64(len(text))); err == nil && bytes.Equal(present, text) {
		return false, nil
	}
	// The control plane reads it in the same way.
	if _, err := config.ReadText(text); err != nil {
		return false, fmt.Errorf("%s completed with %d replicas: %w", f.Base, len(replicas), err)
	}
	if err := atomicfile.Write(f.Path, text, 0o644); err != nil {
		return false, fmt.Errorf("fleet file not written: %w", err)
	}
	return true, nil
}

// render returns a fleet file: base, then the replicas.
func render(base []byte, replicas []config.Replica) ([]byte, error) {
	list, err := yaml.Marshal(struct {
		Replicas []config.Replica `yaml:"replicas"`
	}{replicas})
	if err != nil {
		return nil, err
	}
	text := append(bytes.TrimRight(bytes.Clone(base), "\n"), "\n\n# Written by \"cascade-kube discover\", which replaces changes.\n"...)
	return append(text, list...), nil
}
