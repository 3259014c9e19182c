package publish

import (
	"slices"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/internal/planrollout"
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
	text := sanitize(r.GetErrorDetail().GetMessage(), maxRawText)
	versions := sub.sent[i].versions
	anyone := slices.ContainsFunc(versions, func(v planrollout.Version) bool { return mentionsName(text, v.Name) })
	for _, v := range versions {
		kind, ok := policyslots.KindOf(v.Name)
		if !ok || !kind.Known() {
			continue
		}
		said := SlotReply{Version: v.Version, At: time.Now()}
		if r.GetErrorDetail() != nil && (!anyone || mentionsName(text, v.Name)) {
			said.Refused = redact(textAbout(text, v.Name))
		}
		if n.slots == nil {
			n.slots = make(map[lifecycle.Kind]SlotReply)
		}
		n.slots[kind] = said
	}
}

// textAbout returns the part of an error text that is about one slot, in the
// format of package client, or all of it if it has another format.
func textAbout(text, name string) string {
	_, part, found := strings.Cut(text, name+": ")
	if !found {
		return text
	}
	for _, kind := range lifecycle.Kinds() {
		part, _, _ = strings.Cut(part, "; "+policyslots.ResourceName(kind)+": ")
	}
	return part
}

// mentionsName reports whether a text contains a name by itself, and not as
// part of a longer one.
func mentionsName(text, name string) bool {
	inName := func(c byte) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_/.%~", c) >= 0
	}
	for at := 0; name != ""; {
		i := strings.Index(text[at:], name)
		if i < 0 {
			return false
		}
		from, to := at+i, at+i+len(name)
		if (from == 0 || !inName(text[from-1])) && (to == len(text) || !inName(text[to])) {
			return true
		}
		at = from + 1
	}
	return false
}
