package kubernetes

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/control"
)

// clusterSteady is the cost of the engines: 5 ms per token.
var clusterSteady = steadyProfile(0.005)

// values are those of the chart: a control plane with its state in Kubernetes, which finds the Pods of the Service. The
// planner makes no plan by itself but the first one, and repairs.
const values = `
fleet:
  models: [{name: m, context: 16384, profile: /etc/cascade/fleet/steady.json}]
  planner: {period: 1h}
fleetFiles: {steady.json: %q}
tls: {certManager: {enabled: true}}
controlPlane:
  state: {kubernetes: {enabled: true}}
  discovery: {enabled: true, service: llama}
`

// plane is the name of the control plane's Pod.
const plane = "cascade-0"

// life is a cluster whose life is tested, with its clients.
type life struct {
	*harness.Clients
	*cluster
	values string // file with those of the chart
}

// newLife starts a cluster in which nothing is installed.
func newLife(t *testing.T) *life {
	t.Helper()
	l := &life{cluster: newCluster(t), Clients: newClients(t, clusterSteady, "", "")}
	l.State = l.describe
	l.values = filepath.Join(l.dir, "values.yaml")
	testkit.NoError(t, os.WriteFile(l.values, fmt.Appendf(nil, values, clusterSteady), 0o600))
	return l
}

// describe describes the cluster after a wait that failed.
func (l *life) describe() string {
	var out strings.Builder
	for _, p := range l.engines() {
		fmt.Fprintf(&out, "%s %s: %v deleted %v\n", p.Name, p.Status.PodIP, p.Status.Conditions, p.DeletionTimestamp)
	}
	text, err := l.cascade(plane, "status")
	fmt.Fprintf(&out, "%s: %v\n%s\n", plane, err, text)
	for container, log := range l.pods.Logs(plane) {
		fmt.Fprintf(&out, "%s %s: %s\n", plane, container, log)
	}
	return out.String()
}

// planes returns the Pods of control planes; one without a name where they cannot be listed.
func (l *life) planes() []corev1.Pod {
	list, err := l.client.CoreV1().Pods(namespace).List(l.t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=control"})
	if err != nil {
		return []corev1.Pod{{}}
	}
	return list.Items
}

// awaitReplicas waits until so many replicas are in stages, healthy and with a weight, and no Pod terminates. It returns how
// many are in each stage.
func (l *life) awaitReplicas(n int) string {
	l.T.Helper()
	l.WaitFor(fmt.Sprintf("%d replicas", n), func() bool {
		pods := l.engines()
		if len(pods) != n {
			return false
		}
		if slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil }) {
			return false
		}
		s, err := l.status(plane)
		all := harness.Replicas(s)
		return err == nil && len(all) == n && len(s.Models[0].Unassigned) == 0 && !slices.ContainsFunc(all, func(r control.Replica) bool { return r.Health != "healthy" || r.Weight == 0 })
	})
	s, err := l.status(plane)
	testkit.NoError(l.T, err)
	var stages []string
	for _, st := range s.Models[0].Stages {
		stages = append(stages, fmt.Sprintf("from %d: %d", st.Low, len(st.Replicas)))
	}
	if len(stages) == 0 {
		return "replicas in no stage yet"
	}
	return "replicas " + strings.Join(stages, ", ")
}
