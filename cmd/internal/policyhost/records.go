package policyhost

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/calllog"
	"github.com/cascadeinfer/cascade/wasm/host"
)

const (
	// maxRecords bounds the frames and outputs of the recorded calls in one response, in
	// bytes; in base64 they are a third larger. 64 partitions of a large fleet take some
	// 10 MiB.
	maxRecords = 32 << 20
	// LeftOutHeader has the number of recorded calls that the response omits because of
	// maxRecords. A response without it has all calls.
	LeftOutHeader = "X-Cascade-Left-Out"
	// HostHeader has the name of the host that recorded the calls.
	HostHeader = "X-Cascade-Host"
)

// Records serves GET ?slot=KIND with the recorded calls of the active policy of a slot,
// as a call log. The slot is that of the first of the hosts that decides the kind. Only
// clients on this host are served, because the calls name requests.
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

// writeRecords writes the response, or returns the status and the error to respond with.
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

// fitting returns the records that fit into a response, and the number of the others.
func fitting(all []host.Record) (records []host.Record, left int) {
	room := maxRecords
	for i := range all {
		if room -= len(all[i].Frame) + len(all[i].Output); room < 0 {
			return all[:i], len(all) - i
		}
	}
	return all, 0
}

// decides reports whether the host has a slot of the kind.
func (h *Host) decides(kind string) bool {
	for _, s := range h.Slots.Status() {
		if s.Kind == lifecycle.Kind(kind) {
			return true
		}
	}
	return false
}

// whose describes the processes that have the slot of a kind.
func whose(kind string) string {
	for _, k := range wiring.ControlKinds {
		if k.String() == kind {
			return "the control planes'"
		}
	}
	return "the migrators', each of which answers on the admin address of its replica"
}
