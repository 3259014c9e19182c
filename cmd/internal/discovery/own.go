package discovery

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
)

// OwnFleet returns the fleet file of the migrator in one Pod: the rules' Base with the
// Pod's replica and its model alone. The replica is the one that a decision makes of the
// Pod, but for its drain. port is where it serves clients.
func OwnFleet(rules Rules, pod Pod, port int) (config.Replica, []byte, error) {
	replica, err := rules.configure(pod, port)
	if err != nil {
		return replica, nil, err
	}
	replica.Drain = false // the control plane drains
	fleet := rules.Base
	// The default depends on how many models there are.
	filled := rules.Base
	filled.Models, filled.Replicas = slices.Clone(filled.Models), nil
	filled.Validate()
	fleet.Control.Estimator = filled.Control.Estimator
	fleet.Models = slices.DeleteFunc(slices.Clone(fleet.Models), func(m config.Model) bool { return m.Name != replica.Model })
	fleet.Replicas = []config.Replica{replica}
	text, err := yaml.Marshal(fleet)
	if err != nil {
		return replica, nil, err
	}
	if _, err := config.Read(bytes.NewReader(text)); err != nil {
		return replica, nil, fmt.Errorf("fleet file of Pod %s: %w", pod.Name, err)
	}
	return replica, text, nil
}

// ParsePodInfo adds to settings the labels or annotations with Prefix of a file of the
// downward API, which has a line KEY="VALUE" for each, escaped as in Go.
func ParsePodInfo(text []byte, settings map[string]string) error {
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			continue
		}
		key, quoted, found := strings.Cut(line, "=")
		value, err := strconv.Unquote(quoted)
		if !found || err != nil || !strings.HasPrefix(quoted, `"`) {
			return fmt.Errorf("line %d: %.60q: must be KEY=\"VALUE\", as the downward API writes it", n, line)
		}
		if strings.HasPrefix(key, Prefix) {
			settings[key] = value
		}
	}
	return nil
}
