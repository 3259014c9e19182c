package publish

import (
	"slices"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// Policy slots are served in addition to the sets of a rollout. A node's replies
// about them are recorded and have no other effect: a slot's version is not
// withdrawn from all hosts because one of them refuses it.

// SlotReply is a node's last reply about a policy slot.
type SlotReply struct {
	Version string
	Refused string // the reason; "" for an ACK
	At      time.Time
}

// recordSlotsLocked records the reply about the policy slots in the response that
// it answers, which must still be in sub.sent.
func (n *node) recordSlotsLocked(sub *subscription, r reply) {
	i := slices.IndexFunc(sub.sent, func(s response) bool { return s.nonce == r.GetResponseNonce() })
	if i < 0 {
		return
	}
	for _, name := range sub.sent[i].removed {
		if kind, ok := policyslots.KindOf(name); ok {
			delete(n.slots, kind)
		}
	}
	refusals := refusalsByName(r.GetErrorDetail())
	for _, v := range sub.sent[i].versions {
		kind, ok := policyslots.KindOf(v.name)
		if !ok || !kind.Known() {
			continue
		}
		said := SlotReply{Version: v.version, At: time.Now()}
		if text, refused := refusals[v.name]; refused {
			said.Refused = redact(text)
		} else if r.GetErrorDetail() != nil && len(refusals) == 0 {
			said.Refused = redact(r.GetErrorDetail().GetMessage())
		}
		if n.slots == nil {
			n.slots = make(map[lifecycle.Kind]SlotReply)
		}
		n.slots[kind] = said
	}
}

// refusalsByName returns the reasons in a NACK by the names of resources, as package routing
// sends them; none of another client.
func refusalsByName(e *rpcstatus.Status) map[string]string {
	out := make(map[string]string)
	for _, d := range e.GetDetails() {
		list := new(errdetails.BadRequest)
		if d.UnmarshalTo(list) == nil {
			for _, v := range list.GetFieldViolations() {
				out[v.GetField()] = v.GetDescription()
			}
		}
	}
	return out
}
