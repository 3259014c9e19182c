package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

func TestOwnPod(t *testing.T) {
	test := newKeeperTest(t)
	info := t.TempDir()
	testkit.NoError(t, os.WriteFile(filepath.Join(info, "labels"), []byte("app=\"vllm\"\ncascadeinfer.com/tp=\"4\"\n"), 0o600))
	testkit.NoError(t, os.WriteFile(filepath.Join(info, "annotations"), []byte("cascadeinfer.com/tp=\"2\"\n"), 0o600))
	line := []string{"discover", "--own-pod", "-c", test.file.Base, "-o", test.file.Path, "--port", "9000", "--pod-info", info}
	var out bytes.Buffer
	if code := run(t.Context(), line, &out, &out); code != 1 || !strings.Contains(out.String(), "set them by the downward API") {
		t.Errorf("without the environment: %d, %s", code, out.String())
	}
	for name, value := range map[string]string{"POD_NAME": "a", "POD_UID": "1", "POD_IP": "127.0.0.2", "NODE_NAME": "n1"} {
		t.Setenv(name, value)
	}
	out.Reset()
	if code := run(t.Context(), line, &out, &out); code != 0 || out.String() != "a.1\n" {
		t.Fatalf("%d, %s", code, out.String())
	}
	fleet, err := config.Load(test.file.Path)
	testkit.NoError(t, err)
	if r := fleet.Replicas[0]; r.Address != "127.0.0.2:9000" || r.Peer != "127.0.0.2:9100" || r.TP != 2 || r.Engine != "http://127.0.0.1:8000" || r.Host != "n1" {
		t.Errorf("replica %+v", r)
	}
	testkit.NoError(t, os.WriteFile(filepath.Join(info, "annotations"), []byte("cascadeinfer.com/tp=2\n"), 0o600))
	out.Reset()
	if code := run(t.Context(), line, &out, &out); code != 1 || !strings.Contains(out.String(), "annotations: line 1") {
		t.Errorf("bad annotations: %d, %s", code, out.String())
	}
}

// TestDiscoverCommandLine checks what is refused before anything is asked of a cluster.
func TestDiscoverCommandLine(t *testing.T) {
	test := newKeeperTest(t)
	files := "-c " + test.file.Base + " -o " + test.file.Path
	for line, want := range map[string]struct {
		code int
		text string
	}{
		"--pool a":                             {2, "-c and -o are required"},
		"-c a -o ./a --pool a":                 {2, "must be different"},
		files:                                  {2, "set either --pool or --service"},
		files + " --pool a --service b":        {2, "set either --pool or --service"},
		files + " --pool a --peer-port 0":      {2, "--peer-port 0"},
		files + " --pool a --admin 0.0.0.0:1":  {2, "on loopback"},
		files + " --pool a extra":              {2, "unexpected argument"},
		"-c /none -o b --pool a":               {1, "no such file"},
		files + " --pool a --kubeconfig /none": {1, "--kubeconfig /none: "},
		files + " --check":                     {1, "is not written yet"},
		files + " --pool a --own-pod":          {2, "exclude each other"},
		files + " --pool a --port 1":           {2, "--port needs --own-pod"},
		"--check":                              {2, "-o is required"},
	} {
		var out bytes.Buffer
		if code := run(t.Context(), append([]string{"discover"}, strings.Fields(line)...), &out, &out); code != want.code || !strings.Contains(out.String(), want.text) {
			t.Errorf("%q: exit code %d: %s", line, code, out.String())
		}
	}
}
