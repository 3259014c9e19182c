package main

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/cascadeinfer/cascade/policies/testkit"
)

// TestManifest checks that the manifest has no unknown field, and allows what discovery does and
// nothing else: TestDiscoveryOnAPIServer runs with its permissions.
func TestManifest(t *testing.T) {
	text, err := os.ReadFile("../../deploy/kubernetes/discovery.yaml")
	testkit.NoError(t, err)
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	var rules []string
	for _, doc := range bytes.Split(text, []byte("\n---\n")) {
		object, _, err := decoder.Decode(doc, nil, nil)
		testkit.NoError(t, err)
		switch object := object.(type) {
		case *corev1.ServiceAccount:
		case *rbacv1.RoleBinding:
			if object.RoleRef.Kind != "Role" || len(object.Subjects) != 1 {
				t.Errorf("%s binds %+v to %+v", object.Name, object.RoleRef, object.Subjects)
			}
		case *rbacv1.Role:
			for _, r := range object.Rules {
				if len(r.NonResourceURLs) > 0 {
					t.Errorf("the role allows URLs: %q", r.NonResourceURLs)
				}
				rule := strings.Join(r.Verbs, "+") + " " + strings.Join(r.APIGroups, "+") + "/" + strings.Join(r.Resources, "+")
				if len(r.ResourceNames) > 0 {
					rule += " " + strings.Join(r.ResourceNames, "+")
				}
				rules = append(rules, rule)
			}
		default:
			t.Errorf("an object of another kind: %T", object)
		}
	}
	slices.Sort(rules)
	want := []string{"create events.k8s.io/events", "list+watch /pods", "list+watch /services vllm", "list+watch discovery.k8s.io/endpointslices",
		"list+watch inference.networking.k8s.io/inferencepools vllm", "patch /pods/status"}
	if !slices.Equal(rules, want) {
		t.Errorf("the role allows %q, want %q", rules, want)
	}
}

// TestGuide checks that the commands of the guide have only flags that exist.
func TestGuide(t *testing.T) {
	text, err := os.ReadFile("../../deploy/kubernetes/discovery.md")
	testkit.NoError(t, err)
	root := newRoot(&settings{})
	lines := regexp.MustCompile(`(?m)(?:args|command): \[(?:cascade-kube, )?(discover|replica), ([^\]]*)\]`).FindAllStringSubmatch(string(text), -1)
	if len(lines) < 3 {
		t.Fatalf("found %d commands: the test looks for them in the wrong way", len(lines))
	}
	for _, line := range lines {
		command, _, err := root.Find([]string{line[1]})
		testkit.NoError(t, err)
		args := strings.Split(strings.ReplaceAll(line[2], `"`, ""), ", ")
		if err := command.ParseFlags(args); err != nil {
			t.Errorf("%s: %v", line[0], err)
		}
	}
}
