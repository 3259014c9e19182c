package control

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	autoscaling "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	strictjson "sigs.k8s.io/json"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/plantest"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/planner"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// scaled is the state of a model that should have more replicas.
func scaled() fleet.ModelState {
	return fleet.ModelState{Model: resources.Model{Name: "m"}, Plan: plantest.Parse("a | b"), Scaling: fleet.Scaling{
		Recommendation: planner.Recommendation{Desired: 5, Reason: planner.ScaleHolding, Needed: 3, Limit: partition.LimitMemory, Work: 1.5, Growth: 1.25, Falls: 90e6},
		Present:        2, Utilisation: 0.75, Stages: []partition.Need{{Replicas: 2, Limit: partition.LimitWork}, {Replicas: 1, Limit: partition.LimitBatch}},
	}}
}

// TestScalingStatus checks what the status says of autoscaling, and that it says nothing before it is known.
func TestScalingStatus(t *testing.T) {
	for want, m := range map[string]fleet.ModelState{
		`{"desired":5,"present":2,"reason":"holding","needed":3,"limit":"KV memory","work":1.5,"utilisation":0.75,"growth":1.25,"falls_seconds":90,"stages":[{"name":"s0","replicas":2,"limit":"work"},{"name":"s1","replicas":1,"limit":"batch size"}]}`: scaled(),
		`null`: {Model: resources.Model{Name: "m"}},
		`{"desired":4,"present":4,"reason":"unknown","utilisation":0.5}`:    {Model: resources.Model{Name: "m"}, Scaling: fleet.Scaling{Recommendation: planner.Recommendation{Desired: 4, Reason: planner.ScaleUnknown}, Present: 4, Utilisation: 0.5}},
		`{"desired":4,"present":4,"reason":"infeasible","utilisation":0.5}`: {Model: resources.Model{Name: "m"}, Scaling: fleet.Scaling{Recommendation: planner.Recommendation{Desired: 4, Reason: planner.ScaleNoAnswer}, Present: 4, Utilisation: 0.5}},
	} {
		got, err := json.Marshal(modelOf(m, time.Time{}).Scaling)
		if err != nil || string(got) != want {
			t.Errorf("%s, %v, want %s", got, err, want)
		}
	}
}

// TestScalingMetrics checks the metrics that autoscalers follow; before the number is known there are none.
func TestScalingMetrics(t *testing.T) {
	for _, c := range []struct {
		state fleet.ModelState
		want  map[string]float64
	}{
		{scaled(), map[string]float64{"cascade_desired_replicas m": 5, "cascade_current_replicas m": 2, "cascade_stage_desired_replicas m s0": 2, "cascade_stage_desired_replicas m s1": 1}},
		{fleet.ModelState{Model: resources.Model{Name: "m"}}, map[string]float64{}},
	} {
		ch := make(chan prometheus.Metric, 100)
		metricSink(ch).scaling(c.state)
		close(ch)
		got := map[string]float64{}
		for metric := range ch {
			var out dto.Metric
			testkit.NoError(t, metric.Write(&out))
			name := regexp.MustCompile(`fqName: "(\w+)"`).FindStringSubmatch(metric.Desc().String())[1]
			for _, l := range out.Label {
				name += " " + l.GetValue()
			}
			got[name] = out.Gauge.GetValue()
		}
		if len(got) != len(c.want) {
			t.Errorf("%v, want %v", got, c.want)
		}
		for name, v := range c.want {
			if got[name] != v {
				t.Errorf("%s is %v, want %v", name, got[name], v)
			}
		}
	}
}

// The parts of KEDA's and prometheus-adapter's objects that deploy/kubernetes uses.
type (
	scaledObject struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Target   autoscaling.CrossVersionObjectReference `json:"scaleTargetRef"`
			Interval int                                     `json:"pollingInterval"`
			Min      int32                                   `json:"minReplicaCount"`
			Max      int32                                   `json:"maxReplicaCount"`
			Fallback struct {
				Failures int    `json:"failureThreshold"`
				Replicas int    `json:"replicas"`
				Behavior string `json:"behavior"`
			} `json:"fallback"`
			Advanced struct {
				HPA struct {
					Behavior *autoscaling.HorizontalPodAutoscalerBehavior `json:"behavior"`
				} `json:"horizontalPodAutoscalerConfig"`
			} `json:"advanced"`
			Triggers []struct {
				Type       string            `json:"type"`
				MetricType string            `json:"metricType"`
				Metadata   map[string]string `json:"metadata"`
			} `json:"triggers"`
		} `json:"spec"`
	}
	adapterValues struct {
		Rules struct {
			External []struct {
				Series    string `json:"seriesQuery"`
				Query     string `json:"metricsQuery"`
				Resources struct {
					Overrides map[string]struct {
						Resource string `json:"resource"`
					} `json:"overrides"`
				} `json:"resources"`
				Name struct {
					As string `json:"as"`
				} `json:"name"`
			} `json:"external"`
		} `json:"rules"`
	}
)

// readManifest decodes a file of deploy/kubernetes, in which every field must be known, and checks that the
// metrics that it names exist.
func readManifest(t *testing.T, name string, to any) {
	t.Helper()
	text := testkit.Must(os.ReadFile(filepath.Join("..", "..", "deploy", "kubernetes", name)))
	var document any
	d := yaml.NewDecoder(bytes.NewReader(text))
	testkit.NoError(t, d.Decode(&document))
	if err := d.Decode(new(any)); err != io.EOF {
		t.Errorf("%s: more than one document: %v", name, err)
	}
	unknown, err := strictjson.UnmarshalStrict(testkit.Must(json.Marshal(document)), to)
	if err != nil || len(unknown) > 0 {
		t.Fatalf("%s: %v, %v", name, err, unknown)
	}
	known := make(map[string]bool)
	for _, d := range described {
		known[regexp.MustCompile(`fqName: "(\w+)"`).FindStringSubmatch(d.String())[1]] = true
	}
	named := regexp.MustCompile(`\bcascade_\w+`).FindAllString(string(text), -1)
	if len(named) == 0 {
		t.Errorf("%s names no metric", name)
	}
	for _, metric := range named {
		if !known[metric] {
			t.Errorf("%s names %s, which the control plane does not expose", name, metric)
		}
	}
}

// TestAutoscalers checks the examples of deploy/kubernetes: their fields are those of the API, they follow the
// number of replicas as it is, and add no damping of their own.
func TestAutoscalers(t *testing.T) {
	var h autoscaling.HorizontalPodAutoscaler
	readManifest(t, "hpa.yaml", &h)
	if h.APIVersion != "autoscaling/v2" || h.Kind != "HorizontalPodAutoscaler" || h.Name == "" || len(h.Spec.Metrics) != 1 {
		t.Fatalf("hpa.yaml: %+v", h)
	}
	m := h.Spec.Metrics[0]
	if m.Type != "External" || m.External.Metric.Name != "cascade_desired_replicas" || m.External.Metric.Selector.MatchLabels["model"] == "" || m.External.Target.Type != "AverageValue" || m.External.Target.AverageValue.String() != "1" {
		t.Errorf("hpa.yaml: metric %+v", m)
	}
	var k scaledObject
	readManifest(t, "keda.yaml", &k)
	if k.APIVersion != "keda.sh/v1alpha1" || k.Kind != "ScaledObject" || len(k.Spec.Triggers) != 1 || k.Spec.Fallback.Behavior != "currentReplicas" || k.Spec.Interval < 1 {
		t.Fatalf("keda.yaml: %+v", k)
	}
	x := k.Spec.Triggers[0]
	if x.Type != "prometheus" || x.MetricType != "AverageValue" || x.Metadata["threshold"] != "1" || !strings.HasPrefix(x.Metadata["query"], "max(cascade_desired_replicas{model=") {
		t.Errorf("keda.yaml: trigger %+v", x)
	}
	for name, spec := range map[string]struct {
		target   autoscaling.CrossVersionObjectReference
		min, max int32
		behavior *autoscaling.HorizontalPodAutoscalerBehavior
	}{"hpa.yaml": {h.Spec.ScaleTargetRef, *h.Spec.MinReplicas, h.Spec.MaxReplicas, h.Spec.Behavior}, "keda.yaml": {k.Spec.Target, k.Spec.Min, k.Spec.Max, k.Spec.Advanced.HPA.Behavior}} {
		if spec.target.Kind != "Deployment" || spec.target.APIVersion != "apps/v1" || spec.target.Name == "" || spec.min < 1 || spec.max <= spec.min {
			t.Errorf("%s: %+v", name, spec)
		}
		for _, w := range []*int32{spec.behavior.ScaleUp.StabilizationWindowSeconds, spec.behavior.ScaleDown.StabilizationWindowSeconds} {
			if w == nil || *w != 0 {
				t.Errorf("%s: a stabilization window of its own", name)
			}
		}
	}
	var a adapterValues
	readManifest(t, "prometheus-adapter.yaml", &a)
	if len(a.Rules.External) != 1 {
		t.Fatalf("prometheus-adapter.yaml: %+v", a)
	}
	if r := a.Rules.External[0]; r.Name.As != m.External.Metric.Name || !strings.HasPrefix(r.Query, "max(") || !strings.Contains(r.Query, "by (model)") || !strings.Contains(r.Query, "<<.LabelMatchers>>") {
		t.Errorf("prometheus-adapter.yaml: %+v", r)
	}
}
