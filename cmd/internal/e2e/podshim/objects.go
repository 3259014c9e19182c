package podshim

import "encoding/json"

// The fields of Kubernetes' objects that are read.

type metadata struct {
	Name              string            `json:"name"`
	Namespace         string            `json:"namespace,omitempty"`
	UID               string            `json:"uid,omitempty"`
	Generation        int64             `json:"generation,omitempty"`
	ResourceVersion   string            `json:"resourceVersion,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
	DeletionTimestamp *string           `json:"deletionTimestamp,omitempty"`
	OwnerReferences   []owner           `json:"ownerReferences,omitempty"`
}

type owner struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Controller bool   `json:"controller"`
}

// controller returns the owner that controls an object.
func (m metadata) controller() owner {
	for _, o := range m.OwnerReferences {
		if o.Controller {
			return o
		}
	}
	return owner{}
}

type deployment struct {
	Metadata metadata `json:"metadata"`
	Spec     struct {
		Replicas *int            `json:"replicas"`
		Template json.RawMessage `json:"template"`
	} `json:"spec"`
}

type podObject struct {
	Metadata metadata  `json:"metadata"`
	Spec     podSpec   `json:"spec"`
	Status   podStatus `json:"status"`
}

type podSpec struct {
	NodeName           string `json:"nodeName"`
	ServiceAccountName string `json:"serviceAccountName"`
	Containers         []struct {
		Name, Image   string
		Command, Args []string
		Env           []struct {
			Name, Value string
			ValueFrom   *struct {
				FieldRef *struct{ FieldPath string }
			}
		}
		Ports []struct {
			Name          string
			ContainerPort int
		}
		VolumeMounts []struct{ Name, MountPath string }
	} `json:"containers"`
	Volumes []struct {
		Name      string
		ConfigMap *struct{ Name string }
	} `json:"volumes"`
}

type podStatus struct {
	Phase      string      `json:"phase"`
	PodIP      string      `json:"podIP"`
	Conditions []condition `json:"conditions"`
}

type condition struct {
	Type   string `json:"type"`
	Status string `json:"status"`
}

// ready reports whether a Pod serves.
func (p podObject) ready() bool {
	if p.Metadata.DeletionTimestamp != nil || p.Status.PodIP == "" {
		return false
	}
	for _, c := range p.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}

type service struct {
	Metadata metadata `json:"metadata"`
	Spec     struct {
		Type     string            `json:"type"`
		Selector map[string]string `json:"selector"`
		Ports    []servicePort     `json:"ports"`
	} `json:"spec"`
	Status struct {
		LoadBalancer struct {
			Ingress []struct {
				IP string `json:"ip"`
			} `json:"ingress"`
		} `json:"loadBalancer"`
	} `json:"status"`
}

type servicePort struct {
	Name        string          `json:"name"`
	Protocol    string          `json:"protocol"`
	Port        int             `json:"port"`
	TargetPort  json.RawMessage `json:"targetPort"`
	AppProtocol string          `json:"appProtocol"`
}

type slice struct {
	Metadata metadata `json:"metadata"`
}

// matches reports whether labels have all of a selector's.
func matches(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return len(selector) > 0
}
