package clustertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// ScheduledPod is a Pod on a node.
type ScheduledPod struct {
	*corev1.Pod
	IP       netip.Addr       // the Pod's
	Host     netip.Addr       // its node's
	Services []corev1.Service // that existed when the Pod started: their addresses are environment variables
}

// Container is what a container runs.
type Container struct {
	// Env are its environment variables. If a name occurs twice, the last one counts.
	Env           []Variable
	Command, Args []string
}

// Variable is an environment variable.
type Variable struct{ Name, Value string }

// Lookup returns the value of a variable.
func (c Container) Lookup(name string) (value string, ok bool) { return lookup(c.Env, name) }

func lookup(env []Variable, name string) (string, bool) {
	for _, v := range slices.Backward(env) {
		if v.Name == name {
			return v.Value, true
		}
	}
	return "", false
}

// reference matches $(NAME).
var reference = regexp.MustCompile(`\$\(([A-Za-z_][A-Za-z0-9_]*)\)`)

// expand replaces references to variables; those to unknown ones stay.
func expand(text string, env []Variable) string {
	return reference.ReplaceAllStringFunc(text, func(ref string) string {
		if value, ok := lookup(env, ref[2:len(ref)-1]); ok {
			return value
		}
		return ref
	})
}

// Resolve returns what a container of the Pod runs. Its environment has the variables of Services first, then those of
// the manifest, and references $(NAME) are replaced. A Command or Args that the manifest leaves to the image is nil.
func (p ScheduledPod) Resolve(c *corev1.Container) (Container, error) {
	if len(c.EnvFrom) > 0 || c.WorkingDir != "" {
		return Container{}, fmt.Errorf("container %s: envFrom and workingDir are not supported", c.Name)
	}
	for _, m := range c.VolumeMounts {
		if m.SubPathExpr != "" {
			return Container{}, fmt.Errorf("container %s: mount path %s: subPathExpr is not supported", c.Name, m.MountPath)
		}
	}
	out := Container{Env: p.serviceVariables()}
	for _, v := range c.Env {
		value := expand(v.Value, out.Env)
		if v.ValueFrom != nil {
			if v.ValueFrom.FieldRef == nil {
				return Container{}, fmt.Errorf("container %s: variable %s: only fields of the Pod are supported", c.Name, v.Name)
			}
			var err error
			if value, err = p.field(v.ValueFrom.FieldRef.FieldPath); err != nil {
				return Container{}, fmt.Errorf("container %s: variable %s: %w", c.Name, v.Name, err)
			}
		}
		out.Env = append(out.Env, Variable{v.Name, value})
	}
	for _, word := range c.Command {
		out.Command = append(out.Command, expand(word, out.Env))
	}
	for _, word := range c.Args {
		out.Args = append(out.Args, expand(word, out.Env))
	}
	return out, nil
}

// serviceVariables returns the variables with the addresses of the API server and of the Services of the Pod's namespace.
func (p ScheduledPod) serviceVariables() (env []Variable) {
	for i := range p.Services {
		s := &p.Services[i]
		api := s.Namespace == metav1.NamespaceDefault && s.Name == "kubernetes"
		if s.Spec.ClusterIP != "" && s.Spec.ClusterIP != corev1.ClusterIPNone && (s.Namespace == p.Namespace || api) {
			name := strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
			env = append(env, Variable{name + "_SERVICE_HOST", s.Spec.ClusterIP}, Variable{name + "_SERVICE_PORT", strconv.Itoa(int(s.Spec.Ports[0].Port))})
		}
	}
	return env
}

// field returns a field of the Pod.
func (p ScheduledPod) field(path string) (string, error) {
	switch path {
	case "metadata.name":
		return p.Name, nil
	case "metadata.namespace":
		return p.Namespace, nil
	case "metadata.uid":
		return string(p.UID), nil
	case "status.podIP", "status.podIPs":
		return p.IP.String(), nil
	case "status.hostIP":
		return p.Host.String(), nil
	case "spec.nodeName":
		return p.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return p.Spec.ServiceAccountName, nil
	}
	return "", fmt.Errorf("field %s of a Pod is not supported", path)
}

// Source is where the files of volumes come from.
type Source struct {
	Client kubernetes.Interface // of a user who may read ConfigMaps and Secrets and create tokens
	CAFile string               // path of the certificate of the API server's CA, as PEM; needed for projected volumes with kube-root-ca.crt
}

// VolumeFiles returns the contents of the files of a volume, by their paths in it. It supports emptyDir, ConfigMaps and
// Secrets without items, and projected volumes.
func (p ScheduledPod) VolumeFiles(ctx context.Context, from Source, v *corev1.Volume) (map[string][]byte, error) {
	files := map[string][]byte{}
	var err error
	switch {
	case v.EmptyDir != nil:
	case v.ConfigMap != nil && len(v.ConfigMap.Items) > 0, v.Secret != nil && len(v.Secret.Items) > 0:
		err = errors.New("items of ConfigMaps and Secrets are not supported")
	case v.ConfigMap != nil:
		var m *corev1.ConfigMap
		if m, err = from.Client.CoreV1().ConfigMaps(p.Namespace).Get(ctx, v.ConfigMap.Name, metav1.GetOptions{}); err == nil {
			for name, text := range m.Data {
				files[name] = []byte(text)
			}
			maps.Copy(files, m.BinaryData)
		}
	case v.Secret != nil:
		var s *corev1.Secret
		if s, err = from.Client.CoreV1().Secrets(p.Namespace).Get(ctx, v.Secret.SecretName, metav1.GetOptions{}); err == nil {
			files = s.Data
		}
	case v.Projected != nil:
		for i := 0; i < len(v.Projected.Sources) && err == nil; i++ {
			err = p.project(ctx, from, v.Projected.Sources[i], files)
		}
	default:
		err = fmt.Errorf("this kind of volume is not supported")
	}
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", v.Name, err)
	}
	return files, nil
}

// project adds the files of one source of a projected volume.
func (p ScheduledPod) project(ctx context.Context, from Source, source corev1.VolumeProjection, files map[string][]byte) error {
	switch {
	case source.ServiceAccountToken != nil:
		request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: source.ServiceAccountToken.ExpirationSeconds}}
		t, err := from.Client.CoreV1().ServiceAccounts(p.Namespace).CreateToken(ctx, p.Spec.ServiceAccountName, request, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		files[source.ServiceAccountToken.Path] = []byte(t.Status.Token)
	case source.ConfigMap != nil && source.ConfigMap.Name == "kube-root-ca.crt": // which a controller writes in a real cluster
		text, err := os.ReadFile(from.CAFile)
		if err != nil {
			return err
		}
		items := source.ConfigMap.Items
		if len(items) == 0 {
			items = []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}
		}
		for _, item := range items {
			if item.Key != "ca.crt" {
				return fmt.Errorf("ConfigMap %s has no key %s", source.ConfigMap.Name, item.Key)
			}
			files[item.Path] = text
		}
	case source.DownwardAPI != nil:
		for _, item := range source.DownwardAPI.Items {
			if item.FieldRef == nil {
				return fmt.Errorf("file %s: only fields of the Pod are supported", item.Path)
			}
			value, err := p.field(item.FieldRef.FieldPath)
			if err != nil {
				return err
			}
			files[item.Path] = []byte(value)
		}
	default:
		return fmt.Errorf("this kind of projection is not supported")
	}
	return nil
}
