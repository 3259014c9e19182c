package podprocess

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// probePeriod is the time between two probes, which may be less than a manifest says so that tests take less time.
const probePeriod = time.Second

// probeAll reports whether all containers are ready.
func (r *runningPod) probeAll(ctx context.Context) bool {
	for _, list := range [][]corev1.Container{r.pod.Spec.InitContainers, r.pod.Spec.Containers} {
		for i := range list {
			if p := list[i].ReadinessProbe; p != nil && !r.probe(ctx, &list[i], p) {
				return false
			}
		}
	}
	return true
}

// probe probes a container once.
func (r *runningPod) probe(ctx context.Context, c *corev1.Container, p *corev1.Probe) bool {
	ctx, cancel := context.WithTimeout(ctx, max(time.Second, time.Duration(p.TimeoutSeconds)*time.Second))
	defer cancel()
	switch {
	case p.Exec != nil:
		_, err := r.exec(ctx, c.Name, p.Exec.Command)
		return err == nil
	case p.TCPSocket != nil:
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(r.pod.IP.String(), r.port(c, p.TCPSocket.Port.String())))
		if err == nil {
			conn.Close()
		}
		return err == nil
	case p.HTTPGet != nil:
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(r.pod.IP.String(), r.port(c, p.HTTPGet.Port.String()))+p.HTTPGet.Path, nil)
		if err != nil {
			return false
		}
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Do(req)
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode < http.StatusBadRequest
	}
	return false
}

// port returns the number of a port of a container that may be a name.
func (r *runningPod) port(c *corev1.Container, port string) string {
	for _, p := range c.Ports {
		if p.Name == port {
			return strconv.Itoa(int(p.ContainerPort))
		}
	}
	return port
}
