package podshim

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"path"
	"regexp"
	"strings"
	"time"
)

// Pod is a Pod that is to run.
type Pod struct {
	Namespace, Name, UID string
	Labels, Annotations  map[string]string
	ServiceAccount       string
	IP                   netip.Addr
	Containers           []Container
}

// Container is one of a Pod. Env is resolved, and so are references to it in Command and Args.
type Container struct {
	Name, Image   string
	Command, Args []string
	Env           map[string]string
	// Files are the contents of the ConfigMaps that are mounted, by path.
	Files map[string]string
	Ports []int
}

// instance is a Pod that runs, or that ends.
type instance struct {
	cancel  context.CancelFunc
	done    chan struct{} // closed when its processes have ended
	started chan error    // capacity 1: the result of Start
	pod     Pod
}

// syncPods starts new Pods, writes the status of those that have started, and removes those that
// were deleted when their processes have ended.
func (s *Shim) syncPods(ctx context.Context) error {
	pods, err := list[podObject](ctx, s.cfg.API, "/api/v1/pods")
	if err != nil {
		return err
	}
	seen := make(map[string]bool)
	for _, p := range pods {
		if p.Spec.NodeName == "" && p.Metadata.DeletionTimestamp == nil {
			if err := s.bind(ctx, p); err != nil {
				return errorf("Pod", p.Metadata, err)
			}
		}
		if p.Spec.NodeName != s.cfg.Node {
			continue
		}
		seen[p.Metadata.UID] = true
		if err := s.syncPod(ctx, p); err != nil {
			return errorf("Pod", p.Metadata, err)
		}
	}
	for uid, i := range s.running {
		if !seen[uid] { // removed by force
			i.cancel()
			delete(s.running, uid)
		}
	}
	return nil
}

// bind assigns a Pod to the node, which the next comparison finds.
func (s *Shim) bind(ctx context.Context, p podObject) error {
	return s.cfg.API.Do(ctx, http.MethodPost, podPath(p.Metadata)+"/binding", map[string]any{"apiVersion": "v1", "kind": "Binding",
		"metadata": map[string]any{"name": p.Metadata.Name}, "target": map[string]any{"apiVersion": "v1", "kind": "Node", "name": s.cfg.Node}}, nil)
}

func (s *Shim) syncPod(ctx context.Context, p podObject) error {
	i := s.running[p.Metadata.UID]
	switch {
	case p.Metadata.DeletionTimestamp != nil:
		if i != nil {
			i.cancel()
			select {
			case <-i.done:
			default:
				return nil // the next comparison looks again
			}
		}
		err := s.cfg.API.Do(ctx, http.MethodDelete, podPath(p.Metadata)+"?gracePeriodSeconds=0", nil, nil)
		if isStatus(err, http.StatusNotFound) {
			err = nil
		}
		if err == nil {
			delete(s.running, p.Metadata.UID)
		}
		return err
	case i == nil && p.Status.Phase != "Failed":
		return s.start(ctx, p)
	case i == nil:
		return nil
	}
	select {
	case failure := <-i.started:
		if err := s.patchStatus(ctx, podPath(p.Metadata), s.status(i.pod, true, failure)); err != nil {
			i.started <- failure // written by the next comparison
			return err
		}
		if failure != nil {
			s.cfg.Logger.Error("Pod did not start", "pod", i.pod.Namespace+"/"+i.pod.Name, "error", failure)
		} else {
			s.cfg.Logger.Info("Pod started", "pod", i.pod.Namespace+"/"+i.pod.Name, "ip", i.pod.IP)
		}
	default:
	}
	return nil
}

// start starts a Pod on a goroutine of its own.
func (s *Shim) start(ctx context.Context, p podObject) error {
	ip, err := s.cfg.Address()
	if err != nil {
		return err
	}
	pod, err := s.resolve(ctx, p, ip)
	if err != nil {
		return err
	}
	// The address is known before the Pod serves, as from a kubelet.
	if err := s.patchStatus(ctx, podPath(p.Metadata), s.status(pod, false, nil)); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	i := &instance{cancel, make(chan struct{}), make(chan error, 1), pod}
	s.running[p.Metadata.UID] = i
	s.group.Go(func() {
		defer close(i.done)
		stop, err := s.cfg.Start(ctx, pod)
		i.started <- err
		if err != nil {
			return
		}
		<-ctx.Done()
		stop()
	})
	return nil
}

// status is that of a Pod before its Start has returned, and after it has returned err.
func (s *Shim) status(p Pod, started bool, err error) map[string]any {
	phase, message := "Running", ""
	switch {
	case err != nil:
		phase, message = "Failed", err.Error()
	case !started:
		phase = "Pending"
	}
	now := time.Now().UTC().Format(time.RFC3339)
	var conditions []any
	for _, kind := range [...]string{"PodScheduled", "Initialized", "ContainersReady", "Ready"} {
		value := "True"
		if phase != "Running" && (kind == "ContainersReady" || kind == "Ready") {
			value = "False"
		}
		conditions = append(conditions, map[string]any{"type": kind, "status": value, "lastTransitionTime": now})
	}
	return map[string]any{"phase": phase, "message": message, "podIP": p.IP.String(), "podIPs": []any{map[string]any{"ip": p.IP.String()}},
		"hostIP": s.cfg.Host.String(), "startTime": now, "conditions": conditions}
}

// reference matches $(NAME) in a command.
var reference = regexp.MustCompile(`\$\(([A-Za-z_][A-Za-z0-9_]*)\)`)

// resolve returns what a Pod is to run at an address.
func (s *Shim) resolve(ctx context.Context, p podObject, ip netip.Addr) (Pod, error) {
	m := p.Metadata
	pod := Pod{Namespace: m.Namespace, Name: m.Name, UID: m.UID, Labels: m.Labels, Annotations: m.Annotations, ServiceAccount: p.Spec.ServiceAccountName, IP: ip}
	fields := map[string]string{"metadata.name": m.Name, "metadata.namespace": m.Namespace, "metadata.uid": m.UID, "status.podIP": ip.String(), "status.podIPs": ip.String(),
		"status.hostIP": s.cfg.Host.String(), "spec.nodeName": s.cfg.Node, "spec.serviceAccountName": p.Spec.ServiceAccountName}
	for _, c := range p.Spec.Containers {
		out := Container{Name: c.Name, Image: c.Image, Env: make(map[string]string), Files: make(map[string]string)}
		for _, e := range c.Env {
			out.Env[e.Name] = e.Value
			if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
				out.Env[e.Name] = fields[e.ValueFrom.FieldRef.FieldPath]
			}
		}
		expand := func(words []string) (expanded []string) {
			for _, w := range words {
				expanded = append(expanded, reference.ReplaceAllStringFunc(w, func(r string) string {
					if v, ok := out.Env[strings.Trim(r, "$()")]; ok {
						return v
					}
					return r
				}))
			}
			return expanded
		}
		out.Command, out.Args = expand(c.Command), expand(c.Args)
		for _, port := range c.Ports {
			out.Ports = append(out.Ports, port.ContainerPort)
		}
		for _, mount := range c.VolumeMounts {
			for _, v := range p.Spec.Volumes {
				if v.Name == mount.Name && v.ConfigMap != nil {
					if err := s.readConfigMap(ctx, m.Namespace, v.ConfigMap.Name, mount.MountPath, out.Files); err != nil {
						return Pod{}, fmt.Errorf("ConfigMap %s: %w", v.ConfigMap.Name, err)
					}
				}
			}
		}
		pod.Containers = append(pod.Containers, out)
	}
	return pod, nil
}

// readConfigMap adds the files of a ConfigMap that is mounted at a folder.
func (s *Shim) readConfigMap(ctx context.Context, namespace, name, folder string, to map[string]string) error {
	var m struct{ Data map[string]string }
	if err := s.cfg.API.Do(ctx, http.MethodGet, "/api/v1/namespaces/"+namespace+"/configmaps/"+name, nil, &m); err != nil {
		return err
	}
	for file, text := range m.Data {
		to[path.Join(folder, file)] = text
	}
	return nil
}
