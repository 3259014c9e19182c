package podshim

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// templateLabel is the hash of the template that a Pod was made from.
const templateLabel = "pod-template-hash"

// syncDeployments makes the Pods of Deployments, and removes those that no Deployment wants.
func (s *Shim) syncDeployments(ctx context.Context) error {
	deployments, err := list[deployment](ctx, s.cfg.API, "/apis/apps/v1/deployments")
	if err != nil {
		return err
	}
	pods, err := list[podObject](ctx, s.cfg.API, "/api/v1/pods")
	if err != nil {
		return err
	}
	owned := make(map[string][]podObject)
	for _, p := range pods {
		if o := p.Metadata.controller(); o.Kind == "Deployment" && p.Metadata.DeletionTimestamp == nil {
			owned[o.UID] = append(owned[o.UID], p)
		}
	}
	for _, d := range deployments {
		if d.Metadata.DeletionTimestamp == nil {
			if err := s.syncDeployment(ctx, d, owned[d.Metadata.UID]); err != nil {
				return errorf("Deployment", d.Metadata, err)
			}
			delete(owned, d.Metadata.UID)
		}
	}
	for _, rest := range owned {
		if err := s.remove(ctx, rest); err != nil {
			return err
		}
	}
	return nil
}

// syncDeployment makes one Deployment have as many Pods of its present template as it asks for.
func (s *Shim) syncDeployment(ctx context.Context, d deployment, pods []podObject) error {
	sum := sha256.Sum256(d.Spec.Template)
	hash := hex.EncodeToString(sum[:5])
	want := 1
	if d.Spec.Replicas != nil {
		want = *d.Spec.Replicas
	}
	var present, surplus []podObject
	ready := 0
	for _, p := range pods {
		switch {
		case p.Metadata.Labels[templateLabel] != hash || len(present) == want || p.Status.Phase == "Failed":
			surplus = append(surplus, p)
		default:
			present = append(present, p)
			if p.ready() {
				ready++
			}
		}
	}
	if err := s.remove(ctx, surplus); err != nil {
		return err
	}
	for range want - len(present) {
		if err := s.createPod(ctx, d, hash); err != nil {
			return err
		}
	}
	status := map[string]any{"observedGeneration": d.Metadata.Generation, "replicas": want, "updatedReplicas": len(present), "readyReplicas": ready, "availableReplicas": ready}
	path := "/apis/apps/v1/namespaces/" + d.Metadata.Namespace + "/deployments/" + d.Metadata.Name
	return s.once(path+"#"+d.Metadata.UID, fmt.Sprint(status), func() error { return s.patchStatus(ctx, path, status) })
}

// createPod makes a Pod of a Deployment's template.
func (s *Shim) createPod(ctx context.Context, d deployment, hash string) error {
	var pod struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Metadata   metadata       `json:"metadata"`
		Spec       map[string]any `json:"spec"`
	}
	if err := json.Unmarshal(d.Spec.Template, &pod); err != nil {
		return err
	}
	pod.APIVersion, pod.Kind = "v1", "Pod"
	pod.Metadata.Name = d.Metadata.Name + "-" + strings.ToLower(rand.Text()[:5])
	pod.Metadata.Namespace = d.Metadata.Namespace
	if pod.Metadata.Labels == nil {
		pod.Metadata.Labels = make(map[string]string)
	}
	pod.Metadata.Labels[templateLabel] = hash
	pod.Metadata.OwnerReferences = []owner{{"apps/v1", "Deployment", d.Metadata.Name, d.Metadata.UID, true}}
	pod.Spec["nodeName"] = s.cfg.Node
	return s.cfg.API.Do(ctx, http.MethodPost, "/api/v1/namespaces/"+d.Metadata.Namespace+"/pods", pod, nil)
}

// remove asks for the end of Pods; syncPods ends them.
func (s *Shim) remove(ctx context.Context, pods []podObject) error {
	for _, p := range pods {
		if err := s.cfg.API.Do(ctx, http.MethodDelete, podPath(p.Metadata), nil, nil); err != nil && !isStatus(err, http.StatusNotFound) {
			return errorf("delete Pod", p.Metadata, err)
		}
	}
	return nil
}

// patchStatus writes the status of an object.
func (s *Shim) patchStatus(ctx context.Context, path string, status any) error {
	err := s.cfg.API.Do(ctx, http.MethodPatch, path+"/status", map[string]any{"status": status}, nil)
	if isStatus(err, http.StatusNotFound) {
		return nil // it was deleted meanwhile
	}
	return err
}

func podPath(m metadata) string { return "/api/v1/namespaces/" + m.Namespace + "/pods/" + m.Name }
