package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/discovery"
	"github.com/cascadeinfer/cascade/internal/atomicfile"
)

// ownPodFlags are the flags of "cascade-kube discover --own-pod".
type ownPodFlags struct {
	wanted bool
	info   string
	port   int
}

func (p *ownPodFlags) flags(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&p.wanted, "own-pod", false, "write the fleet file of the migrator in this Pod, and end")
	f.StringVar(&p.info, "pod-info", "", "with --own-pod: directory with the files labels and annotations of the downward API; default: none")
	f.IntVar(&p.port, "port", 0, "with --own-pod: port at which the migrator serves clients: the pool's target port, or the Service's")
}

// writeOwnPod writes the fleet file of this Pod and returns the id of its replica.
func (d *discoverFlags) writeOwnPod() (string, error) {
	_, base, err := d.file.ReadBase()
	if err != nil {
		return "", err
	}
	d.rules.Base = base
	pod := discovery.Pod{Name: os.Getenv("POD_NAME"), UID: os.Getenv("POD_UID"), IP: os.Getenv("POD_IP"), Node: os.Getenv("NODE_NAME"), Settings: make(map[string]string)}
	if pod.Name == "" || pod.UID == "" || pod.IP == "" || pod.Node == "" {
		return "", errors.New("the environment variables POD_NAME, POD_UID, POD_IP and NODE_NAME are required: set them by the downward API (metadata.name, metadata.uid, status.podIP, spec.nodeName)")
	}
	if d.own.info != "" {
		for _, name := range [...]string{"labels", "annotations"} { // annotations count before labels
			if err := readPodInfo(filepath.Join(d.own.info, name), pod.Settings); err != nil {
				return "", err
			}
		}
	}
	replica, text, err := discovery.OwnFleet(d.rules, pod, d.own.port)
	if err != nil {
		return "", err
	}
	return replica.ID, atomicfile.Write(d.file.Path, text, 0o644)
}

// readPodInfo reads a file of the downward API; a missing one has nothing.
func readPodInfo(path string, settings map[string]string) error {
	text, err := atomicfile.Read(path, maxPodInfo)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := discovery.ParsePodInfo(text, settings); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// maxPodInfo bounds a file of the downward API.
const maxPodInfo = 1 << 20
