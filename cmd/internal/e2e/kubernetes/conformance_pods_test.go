//go:build linux

package kubernetes

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cascadeinfer/cascade/cmd/internal/childprocess"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/clustertest"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// startPod starts the processes of a Pod in a network namespace of its own: the suite's echo server
// and Envoy as they are, and wherever the reference picker is deployed, "cascade-kube epp".
func (c *conformanceCluster) startPod(ctx context.Context, p clustertest.Pod) (stop func(), err error) {
	dir, err := os.MkdirTemp(c.dir, p.Name)
	if err != nil {
		return nil, err
	}
	ns, err := c.network.Add(p.IP)
	if err != nil {
		return nil, err
	}
	var running []*exec.Cmd
	stop = func() {
		for _, cmd := range running {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		_ = ns.Remove() // the kernel removes it with the last process otherwise
	}
	for i := range p.Spec.Containers {
		container := &p.Spec.Containers[i]
		cmd, port, err := c.command(ctx, ns, p, container, dir)
		if err == nil {
			err = cmd.Start()
		}
		if err == nil {
			running = append(running, cmd)
			err = awaitPort(ctx, netip.AddrPortFrom(p.IP, port))
		}
		if err != nil {
			stop()
			return nil, fmt.Errorf("container %s: %w", container.Name, err)
		}
	}
	return stop, nil
}

// command returns what a container runs, and the port at which it serves.
func (c *conformanceCluster) command(ctx context.Context, ns *clustertest.Namespace, p clustertest.Pod, k *corev1.Container, dir string) (cmd *exec.Cmd, port uint16, err error) {
	resolved, err := p.Resolve(k)
	if err != nil {
		return nil, 0, err
	}
	files, err := c.writeConfigMaps(ctx, p, k, dir)
	if err != nil {
		return nil, 0, err
	}
	args := resolved.Args
	for i, a := range args {
		if file, ok := files[a]; ok {
			args[i] = file
		}
	}
	switch {
	case strings.Contains(k.Image, "/echo-basic:"):
		cmd, port = ns.Command(c.echo), 3000
		if text, ok := resolved.Lookup("HTTP_PORT"); ok {
			if _, err := fmt.Sscan(text, &port); err != nil {
				return nil, 0, fmt.Errorf("HTTP_PORT %q: %w", text, err)
			}
		}
	case strings.Contains(k.Image, "/epp:"):
		// The flags of the reference picker, unchanged, and those of which it has other defaults.
		account := "system:serviceaccount:" + p.Namespace + ":default"
		kubeconfig, err := c.writeKubeconfig(p.Name, c.forward, account)
		if err != nil {
			return nil, 0, err
		}
		args = append([]string{"epp", "--log=info", "--host=" + p.IP.String(), "--secure-serving", "--kubeconfig=" + kubeconfig}, args...)
		cmd, port = ns.Command(testkit.Must(cascadeKube()), args...), 9002
		c.mu.Lock()
		c.pickers[p.Name] = ns
		c.mu.Unlock()
	case k.Image == gatewayImage:
		gateway := istioGateway{Namespace: p.Namespace, Name: p.Name, ServiceAccount: p.Spec.ServiceAccountName, IP: p.IP, Pilot: c.network.Host()}
		bootstrap := filepath.Join(dir, "envoy.yaml")
		if err := os.WriteFile(bootstrap, istioBootstrap(gateway), 0o600); err != nil {
			return nil, 0, err
		}
		cmd, port = ns.Command(c.envoy, "-c", bootstrap, "--disable-hot-restart", "--concurrency", "1", "--log-level", "info"), gatewayAdminPort
	default:
		return nil, 0, fmt.Errorf("the test does not know what the image %s does", k.Image)
	}
	for _, v := range resolved.Env {
		cmd.Env = append(cmd.Env, v.Name+"="+v.Value)
	}
	log, err := c.openLog(p.Name + "-" + k.Name)
	if err != nil {
		return nil, 0, err
	}
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = dir, log, log, childprocess.DieWithParent()
	return cmd, port, nil
}

// writeConfigMaps writes the files of the ConfigMaps that a container mounts below the folder of the Pod instead of at the root,
// and returns where they are, by their paths in the container.
func (c *conformanceCluster) writeConfigMaps(ctx context.Context, p clustertest.Pod, k *corev1.Container, dir string) (map[string]string, error) {
	at := map[string]string{}
	for _, m := range k.VolumeMounts {
		for i := range p.Spec.Volumes {
			v := &p.Spec.Volumes[i]
			if v.Name != m.Name || v.ConfigMap == nil {
				continue
			}
			files, err := p.VolumeFiles(ctx, clustertest.Source{Client: c.api}, v)
			if err != nil {
				return nil, err
			}
			for name, text := range files {
				inside := path.Join(m.MountPath, name)
				at[inside] = filepath.Join(dir, inside)
				if err := os.MkdirAll(filepath.Dir(at[inside]), 0o700); err != nil {
					return nil, err
				}
				if err := os.WriteFile(at[inside], text, 0o600); err != nil {
					return nil, err
				}
			}
		}
	}
	return at, nil
}

// startWithin bounds the start of a container on a loaded machine.
const startWithin = 2 * time.Minute

// awaitPort waits until a port accepts connections.
func awaitPort(ctx context.Context, a netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", a.String())
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it does not listen on %v: %w", a, err)
		case <-ticker.C:
		}
	}
}
