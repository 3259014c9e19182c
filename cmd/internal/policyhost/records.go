package policyhost

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/wasm/calllog"
	"github.com/cascadeinfer/cascade/wasm/host"
)

const (
	// maxRecords bounds the words of the recorded calls in one answer; in base64 they
	// are a third more. 64 partitions of a large fleet take some 10 MiB.
	maxRecords = 32 << 20
	// LeftOutHeader says how many recorded calls an answer had no room for. Without
	// it, it has all.
	LeftOutHeader = "X-Cascade-Left-Out"
	// HostHeader says whose calls they are.
	HostHeader = "X-Cascade-Host"
)

// Records answers GET ?slot=KIND with the calls that the policy in force of a slot
// has recorded, as a file of frames: of the first of the hosts that decides the
// kind. The calls name requests, so that only this machine may ask.
func Records(hosts ...*Host) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code, err := writeRecords(w, r, hosts)
		if err == nil {
			return
		}
		w.Header().Set("content-type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()})
	})
}

// writeRecords answers, or says with which status it does not.
func writeRecords(w http.ResponseWriter, r *http.Request, hosts []*Host) (int, error) {
	if peer, err := netip.ParseAddrPort(r.RemoteAddr); err != nil || !peer.Addr().Unmap().IsLoopback() {
		return http.StatusForbidden, errors.New("recorded calls name requests: ask from this machine, or through a tunnel")
	}
	kind := r.URL.Query().Get("slot")
	k, ok := abi.ParseKind(kind)
	if !ok || !lifecycle.Kind(kind).Known() {
		return http.StatusBadRequest, fmt.Errorf("slot %.40q: must be one of %s", kind, strings.Join(lifecycle.KindNames(), ", "))
	}
	for _, h := range hosts {
		if !h.decides(kind) {
			continue
		}
		records, left := fitting(h.Slots.Records(k))
		var text bytes.Buffer
		if err := calllog.Write(&text, calllog.FromRecords(records)); err != nil {
			return http.StatusInternalServerError, err
		}
		w.Header().Set("content-type", "application/jsonl")
		w.Header().Set(HostHeader, h.name)
		if left > 0 {
			w.Header().Set(LeftOutHeader, strconv.Itoa(left))
		}
		_, _ = w.Write(text.Bytes())
		return http.StatusOK, nil
	}
	if len(hosts) == 0 {
		return http.StatusNotFound, errors.New("no module may decide in this process, so that nothing is recorded: the fleet file names no policies.keys, or says native")
	}
	return http.StatusNotFound, fmt.Errorf("no module may decide %s in this process: its slot is %s", kind, whose(kind))
}

// fitting are the records that an answer has room for, and how many it has not.
func fitting(all []host.Record) (records []host.Record, left int) {
	room := maxRecords
	for i := range all {
		if room -= len(all[i].Frame) + len(all[i].Output); room < 0 {
			return all[:i], len(all) - i
		}
	}
	return all, 0
}

// decides reports whether the host has a slot of that name.
func (h *Host) decides(kind string) bool {
	for _, s := range h.Slots.Status() {
		if s.Kind == lifecycle.Kind(kind) {
			return true
		}
	}
	return false
}

// whose says where the slot of a kind is.
func whose(kind string) string {
	for _, k := range ControlKinds {
		if k.String() == kind {
			return "the control planes'"
		}
	}
	return "the migrators', each of which answers on the admin address of its replica"
}
