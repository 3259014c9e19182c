package publish_test

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/cache"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestSlotReplies checks that replies about policy slots are recorded by slot
// and have no other effect, even those of a proxy.
func TestSlotReplies(t *testing.T) {
	l := publish.NewLedger(nil)
	p, err := publish.New(publish.Config{Cache: cache.New(cache.Config{}), Ledger: l})
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	a, b := policyslots.ResourceName("place"), policyslots.ResourceName("bid-select")
	must(l.OnDeltaStreamOpen(t.Context(), 1, ""))
	first := &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "n"}, TypeUrl: resources.ExtensionType, ResourceNamesSubscribe: []string{a, b}}
	must(l.OnStreamDeltaRequest(1, first))
	send := func(nonce string, names ...string) {
		r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: resources.ExtensionType, Nonce: nonce}
		for _, n := range names {
			r.Resources = append(r.Resources, &discoveryv3.Resource{Name: n, Version: nonce})
		}
		l.OnStreamDeltaResponse(1, first, r)
	}
	reply := func(nonce, refusal string, by ...string) { // by name, and the reason
		r := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resources.ExtensionType, ResponseNonce: nonce}
		if refusal != "" {
			r.ErrorDetail = &rpcstatus.Status{Code: 13, Message: refusal}
		}
		list := new(errdetails.BadRequest)
		for i := 0; i < len(by); i += 2 {
			list.FieldViolations = append(list.FieldViolations, &errdetails.BadRequest_FieldViolation{Field: by[i], Description: by[i+1]})
		}
		if len(by) > 0 {
			r.ErrorDetail.Details = []*anypb.Any{testkit.Must(anypb.New(list))}
		}
		must(l.OnStreamDeltaRequest(1, r))
	}
	send("1", a, b)
	reply("1", b+": "+a+": the text counts for nothing", b, "unknown signer; unknown key", a, "expired")
	slots := p.Status().Nodes[0].Slots
	if slots["place"].Refused != "expired" || slots["bid-select"].Refused != "unknown signer; unknown key" || slots["place"].Version != "1" {
		t.Errorf("%+v", slots)
	}
	send("2", a, b)
	reply("2", "one is bad", b, "bad")
	send("3", b)
	reply("3", "something else")
	slots = p.Status().Nodes[0].Slots
	if slots["place"].Refused != "" || slots["place"].Version != "2" || slots["bid-select"].Refused != "something else" {
		t.Errorf("%+v", slots)
	}
	if got := l.TakeNACKs(); len(got) != 0 {
		t.Errorf("passed on %+v", got)
	}
}
