package clustertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cascadeinfer/cascade/cmd/internal/childprocess"
)

// mountPoints matches the paths at which volumes can be: in the copies of /run and /etc that the node has.
var mountPoints = regexp.MustCompile(`^(/etc|/run|/var/run)/`)

// checkSupported refuses a container with hooks or probes that would not run as its manifest says.
func checkSupported(c *corev1.Container) error {
	if l := c.Lifecycle; l != nil && (l.PostStart != nil || l.PreStop != nil && l.PreStop.Exec == nil) {
		return fmt.Errorf("container %s: of hooks, only preStop with a command is supported", c.Name)
	}
	for _, p := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe} {
		if p != nil && p.GRPC != nil {
			return fmt.Errorf("container %s: gRPC probes are not supported", c.Name)
		}
	}
	return nil
}

// launch starts a container.
func (r *runningPod) launch(c *corev1.Container) (*process, error) {
	if err := checkSupported(c); err != nil {
		return nil, err
	}
	resolved, err := r.pod.Resolve(c)
	if err != nil {
		return nil, err
	}
	command := resolved.Command
	if len(command) == 0 {
		image := c.Image[strings.LastIndex(c.Image, "/")+1:]
		image, _, _ = strings.Cut(image, ":")
		program, ok := r.cfg.Entrypoints[image]
		if !ok {
			return nil, fmt.Errorf("container %s: no program is named for image %s", c.Name, c.Image)
		}
		command = []string{program}
	}
	for _, m := range c.VolumeMounts {
		if !mountPoints.MatchString(m.MountPath) {
			return nil, fmt.Errorf("container %s: mount path %s: must be below /etc or /run", c.Name, m.MountPath)
		}
	}
	cmd := r.inPod(c.VolumeMounts, append(command, resolved.Args...))
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/", "GOTRACEBACK=all"}
	for _, v := range resolved.Env {
		cmd.Env = append(cmd.Env, v.Name+"="+v.Value)
	}
	p, err := startProcess(cmd)
	if err != nil {
		return nil, fmt.Errorf("container %s: %w", c.Name, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.processes[c.Name] = p
	return p, nil
}

func (r *runningPod) volumeDir(name string) string { return filepath.Join(r.dir, "volumes", name) }

// prepareVolumes writes the files of all volumes.
func (r *runningPod) prepareVolumes(ctx context.Context) error {
	for i := range r.pod.Spec.Volumes {
		v := &r.pod.Spec.Volumes[i]
		dir := r.volumeDir(v.Name)
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return err
		}
		if v.CSI != nil && r.cfg.CSI != nil {
			if err := r.cfg.CSI(v.CSI, r.pod.ScheduledPod.Pod, dir); err != nil {
				return fmt.Errorf("volume %s: %w", v.Name, err)
			}
			continue
		}
		files, err := r.pod.VolumeFiles(ctx, r.cfg.Source, v)
		if err != nil {
			return err
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o640); err != nil {
				return fmt.Errorf("volume %s: %w", v.Name, err)
			}
		}
	}
	return nil
}

// inPod returns a command that runs in the network namespace of the Pod, and in a mount namespace with mounts.
func (r *runningPod) inPod(mounts []corev1.VolumeMount, command []string) *exec.Cmd {
	var script strings.Builder
	script.WriteString("set -e\n")
	for _, m := range mounts {
		fmt.Fprintf(&script, "mkdir -p %[1]q\nmount --bind %[2]q %[1]q\n", m.MountPath, path.Join(r.volumeDir(m.Name), m.SubPath))
	}
	script.WriteString(`exec "$@"`)
	return r.namespace.Command("unshare", append([]string{"--mount", "sh", "-c", script.String(), "container"}, command...)...)
}

// exec runs a command in the namespaces of a container, with its environment, to its end, and returns what it writes.
func (r *runningPod) exec(ctx context.Context, container string, command []string) (string, error) {
	r.mu.Lock()
	p := r.processes[container]
	r.mu.Unlock()
	if p == nil {
		return "", fmt.Errorf("no container %s runs in Pod %s", container, r.pod.Name)
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--target", strconv.Itoa(p.cmd.Process.Pid), "--net", "--mount"}, command...)...)
	cmd.Env, cmd.SysProcAttr = p.cmd.Env, childprocess.DieWithParent()
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, outputDelay
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := ignoreWriters(cmd.Run())
	return out.String(), err
}

// outputDelay is how long a command that has ended may be followed by the output of what it has started.
const outputDelay = 2 * time.Second

// ignoreWriters returns the error of a command that has ended. A process that it has started and that still has its output is no
// error: in a container it would end with the container.
func ignoreWriters(err error) error {
	if errors.Is(err, exec.ErrWaitDelay) {
		return nil
	}
	return err
}

// maxOutput is how much of what a container writes is kept, in bytes.
const maxOutput = 64 << 10

// process is a container.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended
	err   error         // how; valid once it has ended

	mu     sync.Mutex
	output []byte // the end of it; guarded by mu
}

// Write keeps what the container writes.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.output = append(p.output, b...)
	p.output = p.output[max(0, len(p.output)-maxOutput):]
	return len(b), nil
}

// tail returns the last lines that the container has written.
func (p *process) tail() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.output[max(0, len(p.output)-3000):])
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) } // fails only if it has ended

// startProcess starts a command that ends with this process.
func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = p, p, outputDelay
	cmd.SysProcAttr = childprocess.DieWithParent()
	started := make(chan error)
	go func() { // for the kernel, the parent dies with the thread that forks
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = ignoreWriters(cmd.Wait())
			close(p.ended)
		}
	}()
	return p, <-started
}
