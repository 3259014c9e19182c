package podshim

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
)

// The labels of the EndpointSlices that are written here.
const (
	serviceLabel   = "kubernetes.io/service-name"
	managedByLabel = "endpointslice.kubernetes.io/managed-by"
	managedBy      = "podshim"
)

// syncServices writes an EndpointSlice of the ready Pods of each Service with a selector, removes
// those of Services that are gone, and gives Services of type LoadBalancer an address.
func (s *Shim) syncServices(ctx context.Context) error {
	services, err := list[service](ctx, s.cfg.API, "/api/v1/services")
	if err != nil {
		return err
	}
	pods, err := list[podObject](ctx, s.cfg.API, "/api/v1/pods")
	if err != nil {
		return err
	}
	present := make(map[string]bool)
	for _, v := range services {
		if len(v.Spec.Selector) == 0 || v.Metadata.DeletionTimestamp != nil {
			continue
		}
		present[v.Metadata.Namespace+"/"+v.Metadata.Name] = true
		if err := s.syncService(ctx, v, pods); err != nil {
			return errorf("Service", v.Metadata, err)
		}
	}
	slices, err := list[slice](ctx, s.cfg.API, "/apis/discovery.k8s.io/v1/endpointslices?labelSelector="+managedByLabel+"%3D"+managedBy)
	if err != nil {
		return err
	}
	for _, e := range slices {
		path := slicePath(e.Metadata.Namespace, e.Metadata.Name)
		if !present[e.Metadata.Namespace+"/"+e.Metadata.Labels[serviceLabel]] {
			if err := s.cfg.API.Do(ctx, http.MethodDelete, path, nil, nil); err != nil && !isStatus(err, http.StatusNotFound) {
				return errorf("delete EndpointSlice", e.Metadata, err)
			}
			delete(s.written, path)
		}
	}
	return nil
}

func slicePath(namespace, name string) string {
	return "/apis/discovery.k8s.io/v1/namespaces/" + namespace + "/endpointslices/" + name
}

// syncService writes the EndpointSlice of one Service.
func (s *Shim) syncService(ctx context.Context, v service, pods []podObject) error {
	endpoints, address := []any{}, ""
	var first *podObject
	for _, p := range pods {
		if p.Metadata.Namespace != v.Metadata.Namespace || !matches(v.Spec.Selector, p.Metadata.Labels) || !p.ready() {
			continue
		}
		if first == nil {
			first, address = &p, p.Status.PodIP
		}
		endpoints = append(endpoints, map[string]any{
			"addresses": []string{p.Status.PodIP}, "nodeName": p.Spec.NodeName,
			"conditions": map[string]any{"ready": true, "serving": true, "terminating": false},
			"targetRef":  map[string]any{"kind": "Pod", "namespace": p.Metadata.Namespace, "name": p.Metadata.Name, "uid": p.Metadata.UID},
		})
	}
	ports := []any{}
	for _, p := range v.Spec.Ports {
		port := map[string]any{"name": p.Name, "protocol": p.Protocol, "port": targetPort(p, first)}
		if p.AppProtocol != "" {
			port["appProtocol"] = p.AppProtocol
		}
		ports = append(ports, port)
	}
	name := v.Metadata.Name + "-" + managedBy
	text, err := json.Marshal(map[string]any{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "endpoints": endpoints, "ports": ports,
		"metadata": map[string]any{"name": name, "namespace": v.Metadata.Namespace, "labels": map[string]string{serviceLabel: v.Metadata.Name, managedByLabel: managedBy}},
	})
	if err != nil {
		return err
	}
	path := slicePath(v.Metadata.Namespace, name)
	if err := s.once(path, string(text), func() error { return s.cfg.API.Apply(ctx, path, text) }); err != nil {
		return err
	}
	if ingress := v.Status.LoadBalancer.Ingress; v.Spec.Type == "LoadBalancer" && address != "" && (len(ingress) != 1 || ingress[0].IP != address) {
		return s.patchStatus(ctx, "/api/v1/namespaces/"+v.Metadata.Namespace+"/services/"+v.Metadata.Name,
			map[string]any{"loadBalancer": map[string]any{"ingress": []any{map[string]any{"ip": address}}}})
	}
	return nil
}

// targetPort returns the port of a Service at its Pods; a name is that of a container's port.
func targetPort(p servicePort, pod *podObject) int {
	var number int
	if json.Unmarshal(p.TargetPort, &number) == nil && number > 0 {
		return number
	}
	name := strings.Trim(string(p.TargetPort), `"`)
	if pod != nil {
		for _, c := range pod.Spec.Containers {
			for _, port := range c.Ports {
				if port.Name == name {
					return port.ContainerPort
				}
			}
		}
	}
	return p.Port
}
