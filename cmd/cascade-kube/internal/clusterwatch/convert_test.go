package clusterwatch

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/cascadeinfer/cascade/cmd/internal/discovery"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

func TestParsePool(t *testing.T) {
	many := make([]string, maxSelector+1)
	for i := range many {
		many[i] = fmt.Sprintf(`"k%d": "v"`, i)
	}
	for _, c := range []struct{ spec, want string }{
		{`{"selector": {"matchLabels": {"app": "vllm", "tier": "llm"}}, "targetPorts": [{"number": 9000}, {"number": 9001}]}`, "app=vllm,tier=llm port 9000 of [9000 9001]"},
		{`{"selector": {"matchLabels": {"app": "vllm"}}}`, "spec.targetPorts: must"},
		{`{"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": []}`, "spec.targetPorts: must"},
		{`{"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": ["x"]}`, "number: must be a port"},
		{`{"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 65536}]}`, "number: must be a port"},
		{`{"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": "9000"}]}`, "number: must be a port"},
		{`{"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 9000}, {"number": 0}]}`, "spec.targetPorts[1].number: must be a port"},
		{`{"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [` + strings.Repeat(`{"number": 9000},`, maxPorts) + `{"number": 9000}]}`, "65 ports"},
		{`{"selector": {"matchLabels": {}}, "targetPorts": [{"number": 9000}]}`, "its selector is empty"},
		{`{"selector": {"app": "vllm"}, "targetPorts": [{"number": 9000}]}`, "matchLabels: must"},
		{`{"selector": {"matchLabels": {"app": 5}}, "targetPorts": [{"number": 9000}]}`, "matchLabels: must"},
		{`{"selector": {"matchLabels": {"app": "a b"}}, "targetPorts": [{"number": 9000}]}`, "its selector: "},
		{`{"selector": {"matchLabels": {` + strings.Join(many, ",") + `}}, "targetPorts": [{"number": 9000}]}`, "65 labels"},
		{`null`, "matchLabels: must"},
	} {
		s, err := parsePool(decode(t, `{"spec": `+c.spec+`}`))
		got := fmt.Sprintf("%s port %d of %d", s.selector, s.port, s.ports)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.spec, got, c.want)
		}
	}
}

// decode decodes JSON as the dynamic client does: integers are int64.
func decode(t *testing.T, text string) map[string]any {
	var out map[string]any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	testkit.NoError(t, d.Decode(&out))
	return integers(out).(map[string]any)
}

func integers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		f, _ := v.Float64()
		return f
	case map[string]any:
		for k := range v {
			v[k] = integers(v[k])
		}
		return v
	case []any:
		for i := range v {
			v[i] = integers(v[i])
		}
		return v
	}
	return v
}

func FuzzParsePool(f *testing.F) {
	f.Add(`{"spec": {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 9000}]}}`)
	f.Add(`{"spec": {"selector": [], "targetPorts": {}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		var object map[string]any
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		if d.Decode(&object) != nil || object == nil {
			return
		}
		s, err := parsePool(integers(object).(map[string]any))
		if err != nil {
			return
		}
		selector, err := labels.Parse(s.selector)
		if err != nil || selector.Empty() || s.port < 1 || s.port > 65535 {
			t.Fatalf("accepted: %+v (%v)", s, err)
		}
	})
}

// TestPodsAreSmall checks that a Pod with large or many annotations is kept as a small one, which is refused.
func TestPodsAreSmall(t *testing.T) {
	large := pod("a", "vllm", "10.0.0.1")
	large.Annotations[discovery.Prefix+"batch"] = strings.Repeat("0", 200<<10) + "8"
	kept, ok := convertPod(large)
	if value := kept.Settings[discovery.Prefix+"batch"]; !ok || len(value) != discovery.MaxSetting+1 {
		t.Errorf("kept %d bytes", len(value))
	}
	for i := range 1000 {
		large.Labels[fmt.Sprintf("%sx%d", discovery.Prefix, i)] = "1"
	}
	if kept, _ := convertPod(large); len(kept.Settings) != maxSettings {
		t.Errorf("kept %d annotations", len(kept.Settings))
	}
}

// TestReadiness checks that the gate of discovery waits for nothing but itself.
func TestReadiness(t *testing.T) {
	const own, other = discovery.ConditionType, "example.org/ready"
	for _, c := range []struct {
		gates, conditions string // names; those with "!" are false
		gated, ready      bool
	}{
		{"", "Ready ContainersReady", false, true},
		{"", "!Ready ContainersReady", false, false},
		{other, "!Ready ContainersReady", false, false},
		{own, "!Ready ContainersReady", true, true},
		{own, "!Ready ContainersReady !" + own, true, true},
		{own, "!Ready !ContainersReady", true, false},
		{own, "Ready", true, false},
		{own + " " + other, "!Ready ContainersReady", true, false},
		{own + " " + other, "!Ready ContainersReady !" + other, true, false},
		{other + " " + own, "!Ready ContainersReady " + other, true, true},
	} {
		p := pod("a", "vllm", "10.0.0.1")
		p.Status.Conditions = nil
		for _, name := range strings.Fields(c.gates) {
			p.Spec.ReadinessGates = append(p.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: corev1.PodConditionType(name)})
		}
		for _, name := range strings.Fields(c.conditions) {
			name, no := strings.CutPrefix(name, "!")
			status := map[bool]corev1.ConditionStatus{true: corev1.ConditionFalse, false: corev1.ConditionTrue}[no]
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodConditionType(name), Status: status, Reason: "R", Message: "M"})
		}
		kept, _ := convertPod(p)
		if kept.Gated != c.gated || kept.Ready != c.ready {
			t.Errorf("gates %q, conditions %q: gated %v, ready %v", c.gates, c.conditions, kept.Gated, kept.Ready)
		}
		if has := strings.Contains(c.conditions, own); has != (kept.Condition != nil) || has && *kept.Condition != (discovery.Condition{Reason: "R", Message: "M"}) {
			t.Errorf("conditions %q: kept %+v", c.conditions, kept.Condition)
		}
	}
}
