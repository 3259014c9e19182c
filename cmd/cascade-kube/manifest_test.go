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

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestManifests checks that the manifests have no unknown field, and allow what discovery does and nothing else:
// TestDiscoveryOnAPIServer and TestReadinessGatesOnAPIServer run with their permissions.
func TestManifests(t *testing.T) {
	for file, want := range map[string][]string{
		"discovery.yaml": {"create events.k8s.io/events", "list+watch /pods", "list+watch /services vllm", "list+watch discovery.k8s.io/endpointslices",
			"list+watch inference.networking.k8s.io/inferencepools vllm"},
		"discovery-conditions.yaml": {"patch /pods/status"},
	} {
		if got := readRules(t, file); !slices.Equal(got, want) {
			t.Errorf("%s allows %q, want %q", file, got, want)
		}
	}
}

// readRules returns the rules of the roles in a manifest, which are bound to the account of discovery alone.
func readRules(t *testing.T, file string) (rules []string) {
	t.Helper()
	text, err := os.ReadFile("../../deploy/kubernetes/" + file)
	testkit.NoError(t, err)
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for _, doc := range bytes.Split(text, []byte("\n---\n")) {
		object, _, err := decoder.Decode(doc, nil, nil)
		testkit.NoError(t, err)
		switch object := object.(type) {
		case *corev1.ServiceAccount:
		case *rbacv1.RoleBinding:
			if object.RoleRef.Kind != "Role" || object.RoleRef.Name != object.Name || len(object.Subjects) != 1 || object.Subjects[0].Name != "cascade-discovery" {
				t.Errorf("%s binds %+v to %+v", object.Name, object.RoleRef, object.Subjects)
			}
		case *rbacv1.Role:
			for _, r := range object.Rules {
				if len(r.NonResourceURLs) > 0 {
					t.Errorf("%s allows URLs: %q", file, r.NonResourceURLs)
				}
				rule := strings.Join(r.Verbs, "+") + " " + strings.Join(r.APIGroups, "+") + "/" + strings.Join(r.Resources, "+")
				if len(r.ResourceNames) > 0 {
					rule += " " + strings.Join(r.ResourceNames, "+")
				}
				rules = append(rules, rule)
			}
		default:
			t.Errorf("%s has an object of another kind: %T", file, object)
		}
	}
	slices.Sort(rules)
	return rules
}

// TestGuide checks that the commands of the guide have only flags that exist.
func TestGuide(t *testing.T) {
	text, err := os.ReadFile("../../deploy/kubernetes/discovery.md")
	testkit.NoError(t, err)
	root := newRoot(&cli.App{})
	lines := regexp.MustCompile(`(?m)(?:args|command): \[(?:cascade-kube, )?(discover), ([^\]]*)\]`).FindAllStringSubmatch(string(text), -1)
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
