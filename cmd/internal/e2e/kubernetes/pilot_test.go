package kubernetes

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/childprocess"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// gatewayImage is the image of gateways in Deployments that pilot writes: stock Envoy.
const gatewayImage = "envoy"

// gatewayAdminPort is the port of Envoy's admin interface in istioBootstrap. The ports for clients open when Istio has seen the
// Pod, for which the Pod has to be ready.
const gatewayAdminPort = 15000

// port is where pilot serves xDS in plain text.
const port = 15010

// logTail is how much of pilot's log a failed test shows, in bytes.
const logTail = 8192

// gatewayTemplate is what Istio makes of a Gateway of the Gateway API: a Deployment of Envoy without Istio's agent, and
// a Service.
const gatewayTemplate = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{.DeploymentName | quote}}
  namespace: {{.Namespace | quote}}
spec:
  selector: {matchLabels: {"{{.GatewayNameLabel}}": {{.Name | quote}}}}
  template:
    metadata:
      labels: {"{{.GatewayNameLabel}}": {{.Name | quote}}, gateway.istio.io/managed: istio.io-gateway-controller}
    spec:
      containers: [{name: envoy, image: ` + gatewayImage + `}]
---
apiVersion: v1
kind: Service
metadata:
  name: {{.DeploymentName | quote}}
  namespace: {{.Namespace | quote}}
  labels: {"{{.GatewayNameLabel}}": {{.Name | quote}}}
spec:
  type: {{.ServiceType | quote}}
  selector: {"{{.GatewayNameLabel}}": {{.Name | quote}}}
  ports:
  {{- range $key, $val := .Ports }}
  - {name: {{ $val.Name | quote }}, port: {{ $val.Port }}, protocol: {{ $val.Protocol }}, appProtocol: {{ $val.AppProtocol }}}
  {{- end }}
`

// conformanceCache returns the folder of what "make conformance" and "make istio" build.
func conformanceCache(t testing.TB) string {
	return filepath.Join(testkit.Root(t), ".cache", "conformance")
}

// pilotBinary returns the path of a program in a conformanceCache, and skips the test without it.
func pilotBinary(t testing.TB, cache, name string) string {
	t.Helper()
	file := filepath.Join(cache, name)
	if _, err := exec.LookPath(file); err != nil {
		testkit.Skip(t, testkit.Unavailable{What: err.Error(), Remedy: "run `make conformance`, which builds it in some 15 minutes, or `make istio` for pilot alone"})
	}
	return file
}

// pilotConfig is the configuration of startPilot. Every field is required.
type pilotConfig struct {
	Binary     string     // of pilot-discovery
	Dir        string     // for its files, which the test removes
	Kubeconfig string     // of a user who may do everything
	Host       netip.Addr // where gateways reach it
	Log        *os.File   // for what it writes
}

// startPilot starts Istio's control plane. It owns gateways that are stock Envoys without Istio's agent, so Istio's own
// filters and its mutual TLS are off. It ends with the test, and returns when it serves xDS. The namespace
// istio-system and Istio's definitions must exist.
func startPilot(t testing.TB, c pilotConfig) {
	t.Helper()
	inject := filepath.Join(c.Dir, "var", "lib", "istio", "inject") // where pilot looks, from its folder
	testkit.NoError(t, os.MkdirAll(inject, 0o700))
	write := func(path string, content any) {
		text, err := json.Marshal(content)
		testkit.NoError(t, err)
		testkit.NoError(t, os.WriteFile(path, text, 0o600))
	}
	write(filepath.Join(inject, "config"), map[string]any{"policy": "disabled", "templates": map[string]any{"kube-gateway": gatewayTemplate}})
	write(filepath.Join(inject, "values"), map[string]any{"global": map[string]any{"hub": "none", "tag": "none", "proxy": map[string]any{"image": gatewayImage}}})
	write(filepath.Join(c.Dir, "mesh.yaml"), map[string]any{"enableAutoMtls": false, "accessLogFile": "/dev/stdout"})
	address := netip.AddrPortFrom(c.Host, port)
	cmd := exec.Command(c.Binary, "discovery", "--meshConfig", "mesh.yaml", "--kubeconfig", c.Kubeconfig, "--networksConfig", "/dev/null",
		"--httpAddr", "127.0.0.1:15080", "--httpsAddr", "", "--grpcAddr", address.String(), "--secureGRPCAddr", "",
		"--monitoringAddr", "127.0.0.1:15014", "--ctrlz_port", "0")
	cmd.Env = append(os.Environ(), "POD_NAME=pilot", "POD_NAMESPACE=istio-system", "PILOT_ENABLE_ALPN_FILTER=false", "PILOT_ENABLE_METADATA_EXCHANGE=false",
		"ENABLE_GATEWAY_API_INFERENCE_EXTENSION=true")
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = c.Dir, c.Log, c.Log, childprocess.DieWithParent()
	testkit.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(c.Log.Name())
			t.Logf("pilot:\n%s", text[max(0, len(text)-logTail):])
		}
	})
	testkit.WaitFor(t, "pilot to serve xDS", func() bool {
		conn, err := net.DialTimeout("tcp", address.String(), time.Second)
		return err == nil && conn.Close() == nil
	})
}

// istioGateway is the Pod of a gateway, as its Envoy names itself to pilot, which finds the Pod's labels by its address.
type istioGateway struct {
	Namespace, Name, ServiceAccount string
	IP                              netip.Addr
	Pilot                           netip.Addr // the Host of StartPilot
}

// istioBootstrap returns the bootstrap of a gateway's Envoy, which Istio's agent would make.
func istioBootstrap(g istioGateway) []byte {
	return fmt.Appendf(nil, `node:
  id: "router~%[1]s~%[2]s.%[3]s~%[3]s.svc.cluster.local"
  cluster: %[2]s.%[3]s
  metadata: {NAMESPACE: %[3]s, CLUSTER_ID: Kubernetes, SERVICE_ACCOUNT: %[4]q}
admin: {address: {socket_address: {address: %[1]s, port_value: %[7]d}}}
dynamic_resources:
  ads_config: {api_type: DELTA_GRPC, transport_api_version: V3, set_node_on_first_message_only: true, grpc_services: [{envoy_grpc: {cluster_name: xds-grpc}}]}
  lds_config: {ads: {}, resource_api_version: V3, initial_fetch_timeout: 0s}
  cds_config: {ads: {}, resource_api_version: V3, initial_fetch_timeout: 0s}
static_resources:
  clusters:
  - name: xds-grpc
    type: STATIC
    connect_timeout: 5s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment:
      cluster_name: xds-grpc
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: %[5]s, port_value: %[6]d}}}}]}]
`, g.IP, g.Name, g.Namespace, g.ServiceAccount, g.Pilot, port, gatewayAdminPort)
}
