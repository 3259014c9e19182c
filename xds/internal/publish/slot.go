package publish

import (
	"slices"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/xds/internal/rollout"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// Policy slots are served beside the sets that roll-outs show, so what a node
// answers about them is noted and changes nothing else: no version of a slot is
// taken back for all because one host refuses it.

// SlotReply is what a node answered about a policy slot last.
type SlotReply struct {
	Version string
	Refused string // why; "" for one that it took
	At      time.Time
}

// withoutSlots are those of the versions that roll-outs are about.
func withoutSlots(vs []rollout.Version) []rollout.Version {
	return slices.DeleteFunc(vs, func(v rollout.Version) bool {
		_, slot := policyslots.KindOf(v.Name)
		return slot
	})
}

// recordSlotsLocked notes what an answer says of the slots in the response that it
// answers, which is still on the subscription's list.
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
	text := sanitize(r.GetErrorDetail().GetMessage(), maxRawText)
	versions := sub.sent[i].versions()
	anyone := slices.ContainsFunc(versions, func(v rollout.Version) bool { return mentionsName(text, v.Name) })
	for _, v := range versions {
		kind, ok := policyslots.KindOf(v.Name)
		if !ok || !policyslots.Known(kind) {
			continue
		}
		said := SlotReply{Version: v.Version, At: time.Now()}
		if r.GetErrorDetail() != nil && (!anyone || mentionsName(text, v.Name)) {
			said.Refused = redact(textAbout(text, v.Name))
		}
		if n.slots == nil {
			n.slots = make(map[string]SlotReply)
		}
		n.slots[kind] = said
	}
}

// textAbout is the part of a refusal's text that is about one slot, as package client
// words it; all of it where it is worded otherwise.
func textAbout(text, name string) string {
	_, part, found := strings.Cut(text, name+": ")
	if !found {
		return text
	}
	for _, kind := range policyslots.Kinds() {
		part, _, _ = strings.Cut(part, "; "+policyslots.ResourceName(kind)+": ")
	}
	return part
}
