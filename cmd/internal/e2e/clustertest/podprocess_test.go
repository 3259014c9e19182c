package clustertest

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// server serves HTTP until SIGTERM, which it records in $LOG.
const server = `
import http.server, os, signal, sys
def stop(*_):
    open(os.environ["LOG"], "a").write("main ")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("serving", flush=True)
http.server.HTTPServer(("", 80), http.server.SimpleHTTPRequestHandler).serve_forever()`

// sidecar waits for SIGTERM, which it records in $LOG.
const sidecar = `trap 'printf "sidecar " >> "$LOG"; exit 0' TERM; while :; do sleep 0.05; done`

// newRunner returns a Runner in namespaces of the test, for which the volumes of the driver "d" have the file "driver".
func newRunner(t *testing.T) (*Runner, *Network) {
	harness.CopyEtc(t)
	network := testkit.Must(NewNetwork(netip.MustParsePrefix("10.7.0.0/24")))
	return testkit.Must(NewRunner(RunnerConfig{
		Source: Source{Client: &kubernetes.Clientset{}}, Network: network, Dir: t.TempDir(), Entrypoints: map[string]string{"sh": "/bin/sh"},
		CSI: func(_ *corev1.CSIVolumeSource, p *corev1.Pod, dir string) error {
			return os.WriteFile(filepath.Join(dir, "driver"), []byte(p.Name), 0o600)
		},
	})), network
}

// running is a Pod that a Runner runs.
type running struct {
	Pod
	ready chan bool  // what it has reported
	end   func()     // deletes it
	err   chan error // of Run
}

// runPod runs a Pod, whose first report fails.
func runPod(t *testing.T, r *Runner, network *Network, spec corev1.PodSpec) *running {
	t.Helper()
	deleted, unheard := make(chan struct{}), true
	p := &running{ready: make(chan bool, 100), err: make(chan error, 1), end: func() { close(deleted) }}
	ip := testkit.Must(network.Address())
	p.Pod = Pod{
		ScheduledPod: ScheduledPod{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}, Spec: spec}, IP: ip, Host: network.Host()},
		Deleted:      deleted, SetReady: func(_ context.Context, ready bool) error {
			if unheard {
				unheard = false
				return errors.New("no API server")
			}
			p.ready <- ready
			return nil
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); p.err <- r.Run(ctx, p.Pod) }()
	t.Cleanup(func() { cancel(); <-ended })
	return p
}

// awaitReady waits until the Pod has reported that it is ready.
func (p *running) awaitReady(t *testing.T, r *Runner) {
	t.Helper()
	for ready := false; !ready; {
		select {
		case ready = <-p.ready:
		case err := <-p.err:
			t.Fatalf("the Pod has ended: %v", err)
		case <-time.After(testkit.WaitTimeout()):
			t.Fatalf("the Pod is not ready; it has written %q", r.Logs("p"))
		}
	}
}

// wait returns the error of Run, which must end.
func (p *running) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-p.err:
		return err
	case <-time.After(testkit.WaitTimeout()):
		t.Fatal("the Pod does not end")
		return nil
	}
}

// TestRun runs a Pod with an init container, a sidecar, volumes, probes and a hook, and deletes it: the hook, the container and
// the sidecar end in this order, and nothing is left.
func TestRun(t *testing.T) {
	if !Isolate(t) {
		return
	}
	r, network := newRunner(t)
	log := filepath.Join(t.TempDir(), "log")
	env := []corev1.EnvVar{{Name: "LOG", Value: log}, {Name: "IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}}}
	mounts := []corev1.VolumeMount{{Name: "shared", MountPath: "/run/shared"}, {Name: "driver", MountPath: "/etc/driver"}}
	always := corev1.ContainerRestartPolicyAlways
	p := runPod(t, r, network, corev1.PodSpec{
		Volumes: []corev1.Volume{
			{Name: "shared", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "driver", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d"}}},
		},
		InitContainers: []corev1.Container{
			{Name: "init", Image: "registry/sh:v1", Args: []string{"-c", "echo $(IP) > /run/shared/init"}, Env: env, VolumeMounts: mounts},
			{Name: "sidecar", Image: "sh", Args: []string{"-c", sidecar}, Env: env, RestartPolicy: &always},
		},
		Containers: []corev1.Container{{
			Name: "main", Command: []string{"python3", "-c", server}, Env: env, VolumeMounts: mounts, Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 80}},
			StartupProbe:   &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-s", "/run/shared/init"}}}},
			ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromString("web")}}},
			Lifecycle:      &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", `sleep 0.5; printf "hook " >> "$LOG"`}}}},
		}},
	})
	p.awaitReady(t, r)
	resp := testkit.Must(http.Get("http://" + p.IP.String()))
	resp.Body.Close()
	if got, err := r.Exec(t.Context(), "p", "main", "sh", "-c", `cat /run/shared/init /etc/driver/driver`); err != nil || got != p.IP.String()+"\np" {
		t.Errorf("in the container: %q, %v", got, err)
	}
	if got := r.Logs("p")["main"]; !strings.HasPrefix(got, "serving\n") {
		t.Errorf("the container has written %q", got)
	}
	if files, err := os.ReadDir("/etc/driver"); err == nil && len(files) > 0 {
		t.Errorf("the mount of the container is the host's, too: %v", files)
	}
	p.end()
	testkit.NoError(t, p.wait(t))
	if got := string(testkit.Must(os.ReadFile(log))); got != "hook main sidecar " {
		t.Errorf("they end in the order %q", got)
	}
	if _, err := r.Exec(t.Context(), "p", "main", "true"); err == nil {
		t.Error("a command runs in a Pod that has ended")
	}
	if left := testkit.Must(os.ReadDir(r.cfg.Dir)); len(left) > 0 {
		t.Errorf("files of the Pod are left: %v", left)
	}
	if left, err := os.ReadDir("/run/netns"); err != nil || len(left) > 0 {
		t.Errorf("namespaces are left: %v, %v", left, err)
	}
}

// TestFailures checks that a container that ends by itself, one that does not end, and one that cannot be started say so.
func TestFailures(t *testing.T) {
	if !Isolate(t) {
		return
	}
	r, network := newRunner(t)
	for want, c := range map[string]corev1.Container{
		"container c has ended: exit status 3\nsaid\n":                 {Command: []string{"sh", "-c", "echo said; exit 3"}},
		"no program is named for image registry/x/other:v1":            {Image: "registry/x/other:v1"},
		"mount path /config: must be below /etc or /run":               {Command: []string{"true"}, VolumeMounts: []corev1.VolumeMount{{MountPath: "/config"}}},
		"variable V: only fields of the Pod are supported":             {Env: []corev1.EnvVar{{Name: "V", ValueFrom: &corev1.EnvVarSource{}}}},
		"container c: of hooks, only preStop with a command":           {Lifecycle: &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{}}}},
		"c: of hooks, only preStop with a command is":                  {Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}}},
		"container c: gRPC probes are not supported":                   {StartupProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{}}}},
		"c: gRPC probes are not supported":                             {ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{}}}},
		"container c was killed: it had not ended after SIGTERM\ndeaf": {Command: []string{"sh", "-c", `trap "" TERM; echo deaf; while :; do sleep 0.05; done`}},
	} {
		c.Name = "c"
		grace := int64(1)
		p := runPod(t, r, network, corev1.PodSpec{Containers: []corev1.Container{c}, TerminationGracePeriodSeconds: &grace})
		if strings.HasSuffix(want, "deaf") {
			testkit.WaitFor(t, "its output", func() bool { return r.Logs("p")["c"] != "" })
			p.end()
		}
		testkit.WantError(t, p.wait(t), want)
	}
}

// TestOutlived leaves a process that has the output of a container that has ended, and one that has that of its hook: the Pod ends
// nevertheless.
func TestOutlived(t *testing.T) {
	if !Isolate(t) {
		return
	}
	r, network := newRunner(t)
	leave := []string{"sh", "-c", "sleep 20 & echo left"}
	p := runPod(t, r, network, corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Command: []string{"sh", "-c", `trap "exit 0" TERM; sleep 20 & while :; do sleep 0.05; done`},
		Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: leave}}},
	}}})
	p.awaitReady(t, r)
	began := time.Now()
	p.end()
	testkit.NoError(t, p.wait(t))
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("it took %v to end", took)
	}
}
