package resources_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestScenarios runs testdata/scenarios/*.txt (package datadriven; -rewrite rewrites the
// expected output). VIEW is fleet, two-models, edge or module; the lines below a command
// are edits (testkit.EditMessage).
//
//	prove VIEW       builds the view and proves the edited set. The edits below
//	                 "edit TYPE NAME" are of that resource; "drop TYPE NAME" removes a
//	                 resource, and "list TYPE NAME" sends it to every client
//	build VIEW       builds the edited view
//	changes VIEW     builds the view before and after the edits, and prints which of the
//	                 resources of ADS clients differ
//	members VIEW     builds the edited view and prints the replicas of the stages of
//	                 org/m by priority; with the argument routes, the routes are those
//	                 of the view before the edits
//	bootstrap        renders a bootstrap from the edited configuration
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			edits := strings.FieldsFunc(d.Input, func(r rune) bool { return r == '\n' })
			if d.Cmd == "bootstrap" {
				c, err := testkit.EditStruct(resources.BootstrapConfig{NodeID: "n"}, edits...)
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				_, err = resources.Bootstrap(c)
				return outcome(err)
			}
			before := views(t)[d.CmdArgs[0].Key]
			if d.Cmd == "prove" {
				return outcome(prove(t, editSet(t, build(t, before), edits)))
			}
			set, err := resources.Build(editView(t, before, edits))
			if err != nil || d.Cmd == "build" {
				return outcome(err)
			}
			if d.Cmd == "changes" {
				return changes(build(t, before), set)
			}
			proven := set
			if d.HasArg("routes") {
				proven = set.WithTypes(build(t, before), resources.RouteType)
			}
			if err := prove(t, proven); err != nil {
				return outcome(err)
			}
			return members(t, set)
		})
	})
}

func views(t *testing.T) map[string]resources.View {
	return map[string]resources.View{"fleet": fleet(), "two-models": twoModels(), "edge": edgeFleet(), "module": withModule(t),
		"origins": withOrigins("https://a.example", "https://b.example"), "all-origins": withOrigins(resources.AnyOrigin)}
}

func withOrigins(origins ...string) resources.View {
	v := twoModels()
	v.Settings.Origins = origins
	return v
}

// outcome formats an error; package protobuf varies the space in its errors.
func outcome(err error) string {
	if err == nil {
		return "ok\n"
	}
	return strings.ReplaceAll(err.Error(), "\u00a0", " ") + "\n"
}

// editView returns the view after the edits. The certificate and the module, which have
// no form in JSON, stay.
func editView(t *testing.T, v resources.View, edits []string) resources.View {
	t.Helper()
	edge, module := v.Edge, v.Settings.Module
	v.Edge, v.Settings.Module = nil, nil
	out := testkit.Must(testkit.EditStruct(v, edits...))
	out.Edge, out.Settings.Module = edge, module
	return out
}

// editSet returns the set after the edits; see TestScenarios.
func editSet(t *testing.T, s resources.Set, edits []string) resources.Set {
	t.Helper()
	for i := 0; i < len(edits); {
		f := strings.Fields(edits[i])
		first := i + 1
		for i++; i < len(edits) && f[0] == "edit" && !isHeader(edits[i]); i++ {
		}
		s = editResource(t, s, f, edits[first:i])
	}
	return s
}

func isHeader(line string) bool {
	f := strings.Fields(line)
	return len(f) == 3 && slices.Contains([]string{"edit", "drop", "list"}, f[0])
}

func editResource(t *testing.T, s resources.Set, header, edits []string) resources.Set {
	t.Helper()
	types := s.Types()
	typ := types[slices.IndexFunc(types, func(typ string) bool { return strings.HasSuffix(typ, "."+header[1]) })]
	all := s.All(typ)
	i := slices.IndexFunc(all, func(r *resources.Resource) bool { return r.Name == header[2] })
	if i < 0 {
		t.Fatalf("no %s %q", header[1], header[2])
	}
	r := *all[i]
	switch header[0] {
	case "drop":
		all = slices.Delete(all, i, i+1)
	case "list":
		r.Unlisted = false
		all[i] = &r
	default:
		m := testkit.Must(testkit.EditMessage(message(t, &r), edits...))
		edited, err := resources.Encode(typ, r.Name, m)
		testkit.NoError(t, err)
		edited.Unlisted = r.Unlisted
		all[i] = edited
	}
	only := testkit.Must(resources.NewSet(all...))
	return s.WithTypes(only, typ)
}

func changes(before, after resources.Set) string {
	var out strings.Builder
	for _, typ := range after.Types() {
		for _, name := range resources.ChangedNames(before, after, typ) {
			if aggregated(after.Get(typ, name)) {
				fmt.Fprintf(&out, "%s %s\n", typ[strings.LastIndexByte(typ, '.')+1:], name)
			}
		}
	}
	return out.String()
}

// members prints the replicas of each stage as "a b | c | d", by priority.
func members(t *testing.T, s resources.Set) string {
	t.Helper()
	var out strings.Builder
	for k := range policies.MaxStages {
		cla := message(t, s.Get(resources.EndpointType, resources.EndpointName("org/m", k))).(*endpointv3.ClusterLoadAssignment)
		by := make([][]string, len(cla.Endpoints))
		for _, l := range cla.Endpoints {
			for _, e := range l.LbEndpoints {
				by[l.Priority] = append(by[l.Priority], string(resources.ReplicaOf(e)))
			}
		}
		by = slices.DeleteFunc(by, func(ids []string) bool { return len(ids) == 0 })
		for i, ids := range by {
			slices.Sort(ids)
			out.WriteString(map[bool]string{true: "", false: " | "}[i == 0] + strings.Join(ids, " "))
		}
		out.WriteByte('\n')
	}
	return out.String()
}
