package routing

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/internal/cleantext"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Limits of what a client accepts from a server.
const (
	// MaxMessage is the largest response, in bytes. A plan of 10,000 replicas is about 1 MB.
	MaxMessage = 64 << 20
	// MaxSlots is how many names Config.Slots may have.
	MaxSlots = 64
	// maxDetail bounds the text of a NACK, in bytes.
	maxDetail = 2048
)

// Snapshot is what a control plane has sent. It is immutable, and two snapshots share what
// did not change.
type Snapshot struct {
	Routing *resources.Routing // nil before the first plan
	Version string             // of Routing
	Slots   map[string]*SlotConfig
}

// Plan returns the plan, nil before the first one and without a snapshot.
func (s *Snapshot) Plan() *resources.Routing {
	if s == nil {
		return nil
	}
	return s.Routing
}

// SlotConfig is the config of one of Config.Slots.
type SlotConfig struct {
	Name    string
	Version string
	Config  *anypb.Any // passed CheckSlot
}

// machine is the client's side of the delta protocol as a state machine: it takes
// responses and returns requests. It is not safe for concurrent use.
type machine struct {
	node      *corev3.Node
	name      string // of the plan
	slots     []string
	checkSlot func(name string, typed *anypb.Any) error
	held      Snapshot
	changed   bool // since the last call of snapshot
}

func newMachine(node *corev3.Node, slots []string, check func(string, *anypb.Any) error) *machine {
	return &machine{
		node: node, name: resources.RoutingName(node.GetCluster()), slots: slots, checkSlot: check,
		held: Snapshot{Slots: make(map[string]*SlotConfig)}, changed: true,
	}
}

// connect begins a stream. Its requests state the versions that are held, so that the server
// sends nothing again.
func (m *machine) connect() []*discoveryv3.DeltaDiscoveryRequest {
	plan := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resources.RoutingType, Node: m.node,
		ResourceNamesSubscribe: []string{m.name}}
	if m.held.Routing != nil {
		plan.InitialResourceVersions = map[string]string{m.name: m.held.Version}
	}
	if len(m.slots) == 0 {
		return []*discoveryv3.DeltaDiscoveryRequest{plan}
	}
	slots := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resources.ExtensionType, ResourceNamesSubscribe: m.slots,
		InitialResourceVersions: make(map[string]string)}
	for name, s := range m.held.Slots {
		slots.InitialResourceVersions[name] = s.Version
	}
	return []*discoveryv3.DeltaDiscoveryRequest{plan, slots}
}

// receive handles a response and returns the ACK or NACK. The error repeats the NACK's text.
func (m *machine) receive(r *discoveryv3.DeltaDiscoveryResponse) ([]*discoveryv3.DeltaDiscoveryRequest, error) {
	accept := m.acceptPlan
	switch r.GetTypeUrl() {
	case resources.RoutingType:
	case resources.ExtensionType:
		accept = m.acceptSlot
	default:
		return nil, fmt.Errorf("response of type %q: not subscribed", r.GetTypeUrl())
	}
	var faults []error
	refused := new(errdetails.BadRequest) // so that the server need not read the text
	seen := make(map[string]bool, len(r.GetResources()))
	for _, res := range r.GetResources() {
		err := fmt.Errorf("occurs twice in one response")
		if !seen[res.GetName()] {
			err = accept(res)
		}
		seen[res.GetName()] = true
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", res.GetName(), err))
			if len(refused.FieldViolations) < MaxSlots {
				refused.FieldViolations = append(refused.FieldViolations, &errdetails.BadRequest_FieldViolation{
					Field: res.GetName(), Description: truncate(err.Error()),
				})
			}
		}
	}
	if r.GetTypeUrl() == resources.ExtensionType { // a plan stays when its resource is removed
		for _, name := range r.GetRemovedResources() {
			m.removeSlot(name)
		}
	}
	reply := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce(),
		ErrorDetail: nackDetail(faults, refused)}
	return []*discoveryv3.DeltaDiscoveryRequest{reply}, errors.Join(faults...)
}

// acceptPlan decodes and keeps a plan; on an error the last one stays.
func (m *machine) acceptPlan(r *discoveryv3.Resource) error {
	if r.GetName() != m.name || r.GetResource() == nil { // nil: a heartbeat
		return nil
	}
	p := new(api.Routing)
	if err := open(r.GetResource(), p); err != nil {
		return err
	}
	if p.GetName() != m.name {
		return fmt.Errorf("name: is %q, not the resource's", p.GetName())
	}
	plan, err := resources.ReadRouting(p)
	if err != nil {
		return err
	}
	m.held.Routing, m.held.Version, m.changed = plan, r.GetVersion(), true
	return nil
}

// acceptSlot decodes and keeps the config of a policy slot; on an error the last one stays.
func (m *machine) acceptSlot(r *discoveryv3.Resource) error {
	if r.GetResource() == nil {
		return nil
	}
	e := new(corev3.TypedExtensionConfig)
	if err := open(r.GetResource(), e); err != nil {
		return err
	}
	switch {
	case e.GetName() != r.GetName():
		return fmt.Errorf("name: is %q, not the resource's", e.GetName())
	case e.GetTypedConfig() == nil:
		return errors.New("typed_config: must not be empty")
	}
	if m.checkSlot != nil {
		if err := m.checkSlot(r.GetName(), e.GetTypedConfig()); err != nil {
			return err
		}
	}
	m.held.Slots = maps.Clone(m.held.Slots)
	m.held.Slots[r.GetName()] = &SlotConfig{Name: r.GetName(), Version: r.GetVersion(), Config: e.GetTypedConfig()}
	m.changed = true
	return nil
}

func (m *machine) removeSlot(name string) {
	if m.held.Slots[name] == nil {
		return
	}
	m.held.Slots = maps.Clone(m.held.Slots)
	delete(m.held.Slots, name)
	m.changed = true
}

// snapshot returns what is held, nil if nothing has changed since the last call.
func (m *machine) snapshot() *Snapshot {
	if !m.changed {
		return nil
	}
	m.changed = false
	s := m.held
	return &s
}

// open unpacks an Any. protobuf's own errors differ from build to build; a NACK should not.
func open(a *anypb.Any, into proto.Message) error {
	switch want := into.ProtoReflect().Descriptor().FullName(); {
	case a.MessageName() != want:
		return fmt.Errorf("holds a %q, not a %s", a.MessageName(), want)
	case a.UnmarshalTo(into) != nil:
		return fmt.Errorf("the bytes are no %s", want)
	}
	return nil
}

// nackDetail returns a NACK's error detail, nil for an ACK. The code is Envoy's.
func nackDetail(faults []error, refused *errdetails.BadRequest) *statuspb.Status {
	if len(faults) == 0 {
		return nil
	}
	text := make([]string, len(faults))
	for i, err := range faults {
		text[i] = err.Error()
	}
	out := &statuspb.Status{Code: int32(codes.Internal), Message: truncate(strings.Join(text, "; "))}
	if d, err := anypb.New(refused); err == nil {
		out.Details = append(out.Details, d)
	}
	return out
}

// truncate returns a text as valid UTF-8 of at most maxDetail bytes and an ellipsis.
func truncate(text string) string {
	if len(text) > maxDetail {
		text = cleantext.Truncate(text, maxDetail) + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}
