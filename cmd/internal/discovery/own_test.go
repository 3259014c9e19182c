package discovery

import (
	"bytes"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestOwnFleet checks that a migrator's file has the replica that the decision has, also in a
// fleet of several models, and with every option of the example.
func TestOwnFleet(t *testing.T) {
	text := regexp.MustCompile(`(?m)^(\s*)# (\s*[a-z_]+:)`).ReplaceAllString(config.Example, "$1$2")
	full, err := config.Read(strings.NewReader(text))
	testkit.NoError(t, err)
	full.Replicas = nil
	for i := range full.Models {
		full.Models[i].Adapters = nil
	}
	several := fleetOf("m", "n")
	several.Control.Estimator = ""
	for name, base := range map[string]config.Fleet{"several models": several, "example": full} {
		rules := Rules{Base: base, PeerPort: 9100, EnginePort: 8000}
		model := base.Models[len(base.Models)-1].Name
		pod := Pod{Name: "a", UID: "1", Node: "n1", IP: "10.0.0.1", Ready: true, Settings: map[string]string{Prefix + "model": model, Prefix + "tp": "2", Prefix + "kv-tokens": "900000", Prefix + "batch": "8", Prefix + "drain": "true"}}
		r, own, err := OwnFleet(rules, pod, 9000)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := config.Read(bytes.NewReader(own))
		testkit.NoError(t, err)
		if len(got.Replicas) != 1 || got.Replicas[0].Drain || !sameSettings(got.Replicas[0], r) || len(got.Models) != 1 {
			t.Errorf("%s: %s", name, own)
		}
		others := []Pod{pod}
		for i, m := range base.Models[:len(base.Models)-1] {
			others = append(others, Pod{Name: "o", UID: strconv.Itoa(i), Node: "n1", IP: "10.0.1." + strconv.Itoa(i+1), Ready: true, Settings: map[string]string{Prefix + "model": m.Name}})
		}
		others = append(others, Pod{Name: "last", UID: "1", Node: "n1", IP: "10.0.2.1", Ready: true, Settings: map[string]string{Prefix + "model": model, Prefix + "tp": "2", Prefix + "kv-tokens": "900000", Prefix + "batch": "8"}})
		d, err := Decide(rules, Cluster{Port: 9000, Pods: others}, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		decided := d.Replicas[0]
		decided.Drain = false
		if !sameSettings(decided, r) {
			t.Errorf("%s: decided %+v, own %+v", name, decided, r)
		}
		wantEstimator := base
		wantEstimator.Validate()
		if got.Control.Estimator != wantEstimator.Control.Estimator {
			t.Errorf("%s: estimator %q", name, got.Control.Estimator)
		}
	}
	if _, _, err := OwnFleet(Rules{Base: several, PeerPort: 9100}, Pod{Name: "a", UID: "1", Node: "n", IP: "10.0.0.1"}, 9000); err == nil || !strings.Contains(err.Error(), "set annotation cascadeinfer.com/model") {
		t.Errorf("without a model: %v", err)
	}
}

func TestParsePodInfo(t *testing.T) {
	settings := map[string]string{}
	testkit.NoError(t, ParsePodInfo([]byte("app=\"vllm\"\ncascadeinfer.com/tp=\"2\"\n\ncascadeinfer.com/model=\"a\\nb=\\\"c\\\"\"\n"), settings))
	if want := map[string]string{Prefix + "tp": "2", Prefix + "model": "a\nb=\"c\""}; !maps.Equal(settings, want) {
		t.Errorf("got %q", settings)
	}
	for _, bad := range []string{"x", "x=y", "x=`y`", "x='y'", "x=\"y", "="} {
		if err := ParsePodInfo([]byte(bad), settings); err == nil {
			t.Errorf("%.20q is accepted", bad)
		}
	}
}

func FuzzParsePodInfo(f *testing.F) {
	f.Add("cascadeinfer.com/tp", "2")
	f.Add("x", "\x00\n\"")
	f.Fuzz(func(t *testing.T, key, value string) {
		settings := map[string]string{}
		_ = ParsePodInfo([]byte(key+"="+value), settings) // must not panic
		clear(settings)
		if strings.ContainsAny(key, "=\n") {
			return
		}
		testkit.NoError(t, ParsePodInfo([]byte(key+"="+strconv.Quote(value)+"\n"), settings))
		if got, ok := settings[key]; ok != strings.HasPrefix(key, Prefix) || ok && got != value {
			t.Fatalf("%q: %q", key, got)
		}
	})
}
