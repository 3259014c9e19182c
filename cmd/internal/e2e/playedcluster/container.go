package playedcluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascadeinfer/cascade/cmd/internal/childprocess"
)

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
	cmd.Stdout, cmd.Stderr = p, p
	cmd.SysProcAttr = childprocess.DieWithParent()
	started := make(chan error)
	go func() { // for the kernel, the parent dies with the thread that forks
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.ended)
		}
	}()
	return p, <-started
}

// mountPoints matches the paths at which volumes can be: in the copies of /run and /etc that the node has.
var mountPoints = regexp.MustCompile(`^(/etc|/run|/var/run)/`)

// inPod returns a command that runs in the network namespace of the Pod, and in a mount namespace with mounts.
func (r *runningPod) inPod(mounts []corev1.VolumeMount, command []string) *exec.Cmd {
	var script strings.Builder
	script.WriteString("set -e\n")
	for _, m := range mounts {
		fmt.Fprintf(&script, "mkdir -p %[1]q\nmount --bind %[2]q %[1]q\n", m.MountPath, path.Join(r.volumeDir(m.Name), m.SubPath))
	}
	script.WriteString(`exec "$@"`)
	return exec.Command("ip", append([]string{"netns", "exec", r.netns, "sh", "-c", script.String(), "container"}, command...)...)
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
	cmd.Stdout, cmd.Stderr = &out, &out
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	return out.String(), err
}

// launch starts a container.
func (r *runningPod) launch(c *corev1.Container) (*process, error) {
	env, err := r.environment(c)
	if err != nil {
		return nil, err
	}
	command := slices.Clone(c.Command)
	if len(command) == 0 {
		image := c.Image[strings.LastIndex(c.Image, "/")+1:]
		image, _, _ = strings.Cut(image, ":")
		program, ok := r.c.cfg.Entrypoints[image]
		if !ok {
			return nil, fmt.Errorf("container %s: no program is named for image %s", c.Name, c.Image)
		}
		command = []string{program}
	}
	for i, word := range command {
		command[i] = expand(word, env)
	}
	for _, word := range c.Args {
		command = append(command, expand(word, env))
	}
	for _, m := range c.VolumeMounts {
		if !mountPoints.MatchString(m.MountPath) {
			return nil, fmt.Errorf("container %s: mount path %s: must be below /etc or /run", c.Name, m.MountPath)
		}
	}
	cmd := r.inPod(c.VolumeMounts, command)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/", "GOTRACEBACK=all"}
	for _, v := range env {
		cmd.Env = append(cmd.Env, v.name+"="+v.value)
	}
	p, err := startProcess(cmd)
	if err != nil {
		return nil, fmt.Errorf("container %s: %w", c.Name, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.processes == nil {
		r.processes = map[string]*process{}
	}
	r.processes[c.Name] = p
	return p, nil
}

// variable is an environment variable of a container.
type variable struct{ name, value string }

// reference matches $(NAME).
var reference = regexp.MustCompile(`\$\(([A-Za-z_][A-Za-z0-9_]*)\)`)

// expand replaces references to variables; those to unknown ones stay.
func expand(text string, env []variable) string {
	return reference.ReplaceAllStringFunc(text, func(ref string) string {
		for _, v := range slices.Backward(env) {
			if v.name == ref[2:len(ref)-1] {
				return v.value
			}
		}
		return ref
	})
}

// environment returns the variables of a container: the addresses of Services, then those of its manifest.
func (r *runningPod) environment(c *corev1.Container) ([]variable, error) {
	var env []variable
	for i := range r.services {
		s := &r.services[i]
		api := s.Namespace == metav1.NamespaceDefault && s.Name == "kubernetes"
		if s.Spec.ClusterIP != "" && s.Spec.ClusterIP != corev1.ClusterIPNone && (s.Namespace == r.pod.Namespace || api) {
			name := strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
			env = append(env, variable{name + "_SERVICE_HOST", s.Spec.ClusterIP}, variable{name + "_SERVICE_PORT", strconv.Itoa(int(s.Spec.Ports[0].Port))})
		}
	}
	for _, v := range c.Env {
		value := expand(v.Value, env)
		if v.ValueFrom != nil {
			if v.ValueFrom.FieldRef == nil {
				return nil, fmt.Errorf("container %s: variable %s: only fields of the Pod are supported", c.Name, v.Name)
			}
			var err error
			if value, err = r.field(v.ValueFrom.FieldRef.FieldPath); err != nil {
				return nil, err
			}
		}
		env = append(env, variable{v.Name, value})
	}
	return env, nil
}

// field returns a field of the Pod.
func (r *runningPod) field(name string) (string, error) {
	switch name {
	case "metadata.name":
		return r.pod.Name, nil
	case "metadata.namespace":
		return r.pod.Namespace, nil
	case "metadata.uid":
		return string(r.pod.UID), nil
	case "status.podIP":
		return r.ip, nil
	case "spec.nodeName":
		return r.pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return r.pod.Spec.ServiceAccountName, nil
	}
	return "", fmt.Errorf("field %s of a Pod is not supported", name)
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
		if err := r.fillVolume(ctx, v, dir); err != nil {
			return fmt.Errorf("volume %s: %w", v.Name, err)
		}
	}
	return nil
}

// fillVolume writes the files of a volume.
func (r *runningPod) fillVolume(ctx context.Context, v *corev1.Volume, dir string) error {
	core, in := r.c.cfg.Client.CoreV1(), r.pod.Namespace
	files := map[string]string{}
	switch {
	case v.EmptyDir != nil:
	case v.ConfigMap != nil:
		m, err := core.ConfigMaps(in).Get(ctx, v.ConfigMap.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		files = m.Data
	case v.Secret != nil:
		s, err := core.Secrets(in).Get(ctx, v.Secret.SecretName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for name, text := range s.Data {
			files[name] = string(text)
		}
	case v.CSI != nil && r.c.cfg.CSI != nil:
		return r.c.cfg.CSI(v.CSI, r.pod, dir)
	case v.Projected != nil:
		for _, source := range v.Projected.Sources {
			if err := r.project(ctx, source, files); err != nil {
				return err
			}
		}
	default:
		return fmt.Errorf("this kind of volume is not supported")
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o640); err != nil {
			return err
		}
	}
	return nil
}

// project adds the files of one source of a projected volume.
func (r *runningPod) project(ctx context.Context, source corev1.VolumeProjection, files map[string]string) error {
	switch {
	case source.ServiceAccountToken != nil:
		request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: source.ServiceAccountToken.ExpirationSeconds}}
		t, err := r.c.cfg.Client.CoreV1().ServiceAccounts(r.pod.Namespace).CreateToken(ctx, r.pod.Spec.ServiceAccountName, request, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		files[source.ServiceAccountToken.Path] = t.Status.Token
	case source.ConfigMap != nil && source.ConfigMap.Name == "kube-root-ca.crt": // which a controller writes in a real cluster
		text, err := os.ReadFile(r.c.cfg.CAFile)
		if err != nil {
			return err
		}
		files["ca.crt"] = string(text)
	case source.DownwardAPI != nil:
		for _, item := range source.DownwardAPI.Items {
			value, err := r.field(item.FieldRef.FieldPath)
			if err != nil {
				return err
			}
			files[item.Path] = value
		}
	default:
		return fmt.Errorf("this kind of projection is not supported")
	}
	return nil
}
