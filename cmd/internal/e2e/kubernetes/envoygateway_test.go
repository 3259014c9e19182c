package kubernetes

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

// envoyGatewayBinary returns the path of Envoy Gateway: $ENVOY_GATEWAY, that of "make envoy-gateway", or envoy-gateway in PATH.
// Without one it skips the test, also in continuous integration: to build it takes minutes. It fails the test if
// ENVOY_GATEWAY is set but is not an executable file.
func envoyGatewayBinary(t testing.TB) string {
	t.Helper()
	return testkit.Program{
		Variable: "ENVOY_GATEWAY", Cached: "envoy-gateway/envoy-gateway", Name: "envoy-gateway",
		Missing: testkit.Unavailable{What: "there is no Envoy Gateway", Remedy: "run `make envoy-gateway`, or set ENVOY_GATEWAY to a binary"},
	}.Find(t)
}

// envoyGateway is a running Envoy Gateway. It listens at fixed ports of all addresses: its tests run isolated.
type envoyGateway struct {
	*harness.Daemon // its log has the status of each object

	t   testing.TB
	dir string // of the objects
}

// gatewayClass is the name of the GatewayClass for Gateways of this process.
const gatewayClass = "eg"

// version is how Envoy Gateway calls the Envoy that it finds.
const version = "1.40.0"

// base are the objects that every Gateway needs: the class, and the Envoy that runs as a process.
const base = `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: ` + gatewayClass + `}
spec:
  controllerName: gateway.envoyproxy.io/gatewayclass-controller
  parametersRef: {group: gateway.envoyproxy.io, kind: EnvoyProxy, name: host, namespace: default}
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyProxy
metadata: {name: host, namespace: default}
spec:
  concurrency: 2
  provider: {type: Host, host: {envoyVersion: "` + version + `"}}
`

// settings are Envoy Gateway's own, with the directories of objects and of its files.
const settings = `
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyGateway
gateway: {controllerName: gateway.envoyproxy.io/gatewayclass-controller}
provider:
  type: Custom
  custom:
    resource: {type: File, file: {paths: [%[1]q]}}
    infrastructure: {type: Host, host: {configHome: "%[2]s/config", dataHome: "%[2]s/data", stateHome: "%[2]s/state", runtimeDir: "%[2]s/run"}}
logging: {level: {default: info}}
extensionApis: {enableBackend: true, enableEnvoyPatchPolicy: true}
`

// startEnvoyGateway runs Envoy Gateway until the end of the test at the latest, with objects as YAML, and does not wait for its
// Envoy. Both are one process group, which ends with the test. enter is a command that runs the one that follows it in
// another network namespace; none: in that of the test.
func startEnvoyGateway(t testing.TB, objects string, enter ...string) *envoyGateway {
	t.Helper()
	binary, envoy := envoyGatewayBinary(t), envoytest.Binary(t)
	home, err := os.MkdirTemp("", "eg") // short: it may have Unix sockets
	testkit.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(home) })
	g := &envoyGateway{t: t, dir: filepath.Join(home, "objects")}
	for _, dir := range []string{g.dir, filepath.Join(home, "data", "envoy-versions", version, "bin"), filepath.Join(home, "run")} {
		testkit.NoError(t, os.MkdirAll(dir, 0o700))
	}
	testkit.NoError(t, os.Symlink(envoy, filepath.Join(home, "data", "envoy-versions", version, "bin", "envoy"))) // nothing is downloaded
	file := filepath.Join(home, "envoy-gateway.yaml")
	testkit.NoError(t, os.WriteFile(file, fmt.Appendf(nil, settings, g.dir, home), 0o600))
	g.Apply("class", base)
	g.Apply("test", objects)
	env := []string{"HOME=" + home}
	harness.Command{Binary: binary, Args: []string{"certgen", "--local", "--config-home", filepath.Join(home, "config")}, Env: env}.Output(t)
	words := append(enter[:len(enter):len(enter)], binary, "server", "--config-path", file)
	g.Daemon = harness.Command{Binary: words[0], Args: words[1:], Env: env, Group: true}.Start(t)
	return g
}

// Apply adds the objects of a file of this name, or replaces those that it had.
func (g *envoyGateway) Apply(name, objects string) {
	g.t.Helper()
	hidden := filepath.Join(g.dir, "."+name) // which Envoy Gateway does not read
	testkit.NoError(g.t, os.WriteFile(hidden, []byte(objects), 0o600))
	testkit.NoError(g.t, os.Rename(hidden, filepath.Join(g.dir, name+".yaml")))
}

// Delete removes the objects of a file.
func (g *envoyGateway) Delete(name string) {
	g.t.Helper()
	testkit.NoError(g.t, os.Remove(filepath.Join(g.dir, name+".yaml")))
}
