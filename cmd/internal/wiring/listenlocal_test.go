package wiring

import (
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

// TestListenLocal opens control.socket in a folder that does not exist, for users among which the own one is not listed.
func TestListenLocal(t *testing.T) {
	f := Fleet{Fleet: config.Fleet{Control: config.Control{Socket: filepath.Join(t.TempDir(), "d", "s"), SocketUsers: []string{"65534"}}}}
	l := testkit.Must(f.ListenLocal(slog.New(slog.DiscardHandler)))
	conn := testkit.Must(net.Dial("unix", f.Fleet.Control.Socket))
	testkit.Must(l.Accept()).Close()
	conn.Close()
	testkit.NoError(t, l.Close())

	f.Fleet.Control.Socket = "/dev/null/d/s"
	_, err := f.ListenLocal(slog.New(slog.DiscardHandler))
	testkit.WantError(t, err, "control.socket: mkdir /dev/null/d: not a directory; set it to a path")
	f.Fleet.Control = config.Control{}
	if l, err := f.ListenLocal(nil); l != nil || err != nil {
		t.Errorf("a fleet without the socket: %v, %v", l, err)
	}
}

// TestSocketWarning checks that the socket that admin_users brings is explained until the fleet's users are named.
func TestSocketWarning(t *testing.T) {
	for _, tt := range []struct {
		control config.Control
		want    bool
	}{
		{config.Control{Socket: config.DefaultSocket}, true},
		{config.Control{Socket: config.DefaultSocket, SocketUsers: []string{"cascade-replica"}}, false},
		{config.Control{Socket: "/run/own/s"}, false},
	} {
		f := Fleet{Fleet: config.Fleet{Control: tt.control}}
		if got := strings.Join(f.Warnings(), "\n"); strings.Contains(got, "control.socket_users") != tt.want {
			t.Errorf("%+v: warnings %q", tt.control, got)
		}
	}
}

// TestAdoptWarnings checks the warnings of a fleet with adopt: if-needed: settings without effect while it is undivided.
func TestAdoptWarnings(t *testing.T) {
	for adopt, want := range map[string]bool{config.AdoptIfNeeded: true, config.AdoptGain: false, config.AdoptAlways: false} {
		f := Fleet{Fleet: config.Fleet{Models: []config.Model{{Name: "m", History: "old.csv"}}, Planner: config.Planner{Adopt: adopt}}}
		if got := strings.Join(f.Warnings(), "\n"); strings.Contains(got, "models[0].history: ") != want || (f.Caveat(abi.Partition) != "") != want {
			t.Errorf("adopt %s: warnings %q, caveat %q", adopt, got, f.Caveat(abi.Partition))
		}
	}
}
