package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/discovery"
	"github.com/cascadeinfer/cascade/cmd/internal/fileio"
)

// replicaFlags are the flags of "cascade-kube replica".
type replicaFlags struct {
	file  discovery.FleetFile
	info  string
	port  int
	rules discovery.Rules
}

// newReplica is "cascade-kube replica".
func newReplica() *cobra.Command {
	r := &replicaFlags{}
	c := &cobra.Command{
		Use:   "replica -c BASE -o FILE --port PORT",
		Short: "Write the fleet file of the migrator in this Pod",
		Long: `Replica is an init container of a Pod with an engine and its migrator: it writes the
migrator's fleet file, which is the file BASE, as discover reads it, with this Pod's replica. It
needs no access to the API server: the downward API gives it the environment variables POD_NAME,
POD_UID, POD_IP and NODE_NAME and, in the directory --pod-info, the files "labels" and
"annotations". It prints the replica's id, which is POD_NAME.POD_UID.`,
		Example: `  cascade-kube replica -c /etc/cascade/base.yaml -o /run/cascade/fleet.yaml --port 9000 --pod-info /etc/podinfo
  cascade migrator -c /run/cascade/fleet.yaml --replica "$POD_NAME.$POD_UID"`,
		Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			if r.file.Base == "" || r.file.Path == "" || samePath(r.file.Base, r.file.Path) {
				return &usageError{c.CommandPath(), errors.New("-c and -o are required, and must be different files")}
			}
			id, err := r.write()
			if err == nil {
				fmt.Fprintln(c.OutOrStdout(), id)
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVarP(&r.file.Base, "config", "c", "", "fleet file without replicas")
	f.StringVarP(&r.file.Path, "out", "o", "", "fleet file to write, for the migrator")
	f.StringVar(&r.info, "pod-info", "", "directory with the files labels and annotations of the downward API; default: none")
	f.IntVar(&r.port, "port", 0, "port at which the migrator serves clients: the pool's target port, or the Service's")
	portFlags(c, &r.rules)
	return c
}

// write writes the file and returns the id of the replica.
func (r *replicaFlags) write() (string, error) {
	_, base, err := r.file.ReadBase()
	if err != nil {
		return "", err
	}
	r.rules.Base = base
	pod := discovery.Pod{Name: os.Getenv("POD_NAME"), UID: os.Getenv("POD_UID"), IP: os.Getenv("POD_IP"), Node: os.Getenv("NODE_NAME"), Settings: make(map[string]string)}
	if pod.Name == "" || pod.UID == "" || pod.IP == "" || pod.Node == "" {
		return "", errors.New("the environment variables POD_NAME, POD_UID, POD_IP and NODE_NAME are required: set them by the downward API (metadata.name, metadata.uid, status.podIP, spec.nodeName)")
	}
	if r.info != "" {
		for _, name := range [...]string{"labels", "annotations"} { // annotations count before labels
			if err := readPodInfo(filepath.Join(r.info, name), pod.Settings); err != nil {
				return "", err
			}
		}
	}
	replica, text, err := discovery.OwnFleet(r.rules, pod, r.port)
	if err != nil {
		return "", err
	}
	return replica.ID, fileio.WriteAtomic(r.file.Path, text, 0o644)
}

// readPodInfo reads a file of the downward API; a missing one has nothing.
func readPodInfo(path string, settings map[string]string) error {
	text, err := fileio.Read(path, maxPodInfo)
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
