package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// units returns the systemd units under deploy by name.
func units(t *testing.T) map[string]string {
	t.Helper()
	paths := testkit.Must(filepath.Glob(filepath.Join("..", "..", "deploy", "systemd", "*.service")))
	out := map[string]string{}
	for _, p := range paths {
		out[filepath.Base(p)] = string(testkit.Must(os.ReadFile(p)))
	}
	if len(out) != 4 {
		t.Fatalf("units: %v", paths)
	}
	return out
}

// TestUnitCommands checks that the commands of the units exist and have the flags that they get, and
// that a reload starts what the unit started.
func TestUnitCommands(t *testing.T) {
	for name, text := range units(t) {
		_, line, _ := strings.Cut(text, "ExecStart=/usr/local/bin/cascade ")
		line, _, _ = strings.Cut(line, "\n")
		c, rest, err := newRoot(&settings{}).Find(strings.Fields(line))
		testkit.NoError(t, err)
		if _, ok := c.Annotations[cli.DaemonMark]; !ok {
			t.Errorf("%s: %q is not a daemon", name, line)
		}
		if err := c.ParseFlags(rest); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		upgrades := c.Flags().Lookup("runtime-dir") != nil
		if strings.Contains(text, "ExecReload=/bin/sh -c '/usr/local/bin/cascade "+line+" &'\n") != upgrades {
			t.Errorf("%s: ExecReload must start ExecStart's command if and only if the daemon hands over its sockets", name)
		}
	}
}

// TestUnitsConfine checks that a daemon that is taken over can do little: control plane, proxy and replicas have users
// of their own, and each unit lets its daemon call, see and become no more than it needs.
func TestUnitsConfine(t *testing.T) {
	users := map[string]string{"cascade-control.service": "cascade-control", "cascade-proxy.service": "cascade-proxy",
		"cascade-migrator@.service": "cascade-replica", "cascade-engine@.service": "cascade-replica"} // sockets of an engine admit its own user only
	for name, text := range units(t) {
		for _, want := range []string{"User=" + users[name], "SystemCallFilter=@system-service", "SystemCallArchitectures=native", "CapabilityBoundingSet=",
			"RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK", "RestrictNamespaces=yes", "ProtectKernelTunables=yes", "ProtectControlGroups=yes",
			"LockPersonality=yes", "NoNewPrivileges=yes", "ProtectSystem=strict", "UMask=0077"} {
			if !strings.Contains(text, "\n"+want+"\n") {
				t.Errorf("%s lacks %s", name, want)
			}
		}
	}
}

// TestUnitsVerify checks the units with systemd's own reader.
func TestUnitsVerify(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		testkit.Skip(t, testkit.Unavailable{What: "systemd-analyze, which checks units, is not installed", Remedy: "install systemd"})
	}
	dir, self := t.TempDir(), testkit.Must(os.Executable())
	args := []string{"verify"}
	for name, text := range units(t) {
		path := filepath.Join(dir, strings.Replace(name, "@", "@r0", 1))
		testkit.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(text, "/usr/local/bin/cascade", self)), 0o600))
		args = append(args, path)
	}
	if out, err := exec.Command(analyze, args...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// TestNotifiesSystemd checks what systemd receives from a daemon that starts and stops.
func TestNotifiesSystemd(t *testing.T) {
	dir := testkit.Must(os.MkdirTemp("", "notify")) // its path is short
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s")
	socket := testkit.Must(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"}))
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	receive := func(want string) {
		t.Helper()
		testkit.NoError(t, socket.SetReadDeadline(time.Now().Add(patience)))
		b := make([]byte, 100)
		n, err := socket.Read(b)
		if got := string(b[:n]); err != nil || got != want {
			t.Fatalf("systemd received %q, %v, want %q", got, err, want)
		}
	}
	s := newSite(t, "")
	control := start(t, "control", "-c", s.file, "--log", "error")
	receive("READY=1")
	control.end()
	receive("STOPPING=1")
}
