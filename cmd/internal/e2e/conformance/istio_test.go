//go:build linux

package conformance

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/cascadeinfer/cascade/cmd/internal/childprocess"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/podshim"
	"github.com/cascadeinfer/cascade/policies/testkit"
)

// gatewayImage is the image of the gateways' Pods: stock Envoy.
const gatewayImage = "envoy"

// pilotPort is where Istio serves xDS in plain text.
const pilotPort = 15010

// gatewayAdmin is the port of Envoy's admin interface. Its ports for clients open when Istio has seen
// the Pod, for which the Pod has to be ready.
const gatewayAdmin = 15000

// gatewayTemplate is what Istio makes of a Gateway: a Deployment of Envoy without Istio's agent, and
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

// startPilot starts Istio's control plane, which ends with the test. Its own filters and mutual TLS
// are off: stock Envoy has no such filters, and there is no agent that has certificates.
func (c *cluster) startPilot() {
	c.Helper()
	dir := filepath.Join(c.dir, "pilot")
	inject := filepath.Join(dir, "var", "lib", "istio", "inject") // where pilot looks, from its folder
	testkit.NoError(c, os.MkdirAll(inject, 0o700))
	write := func(path string, content any) {
		text, err := json.Marshal(content)
		testkit.NoError(c, err)
		testkit.NoError(c, os.WriteFile(path, text, 0o600))
	}
	write(filepath.Join(inject, "config"), map[string]any{"policy": "disabled", "templates": map[string]any{"kube-gateway": gatewayTemplate}})
	write(filepath.Join(inject, "values"), map[string]any{"global": map[string]any{"hub": "none", "tag": "none", "proxy": map[string]any{"image": gatewayImage}}})
	write(filepath.Join(dir, "mesh.yaml"), map[string]any{"enableAutoMtls": false, "accessLogFile": "/dev/stdout"})
	cmd := exec.Command(c.pilot, "discovery", "--meshConfig", "mesh.yaml", "--kubeconfig", c.kubeconfig("pilot", c.server.Address, ""), "--networksConfig", "/dev/null",
		"--httpAddr", "127.0.0.1:15080", "--httpsAddr", "", "--grpcAddr", netip.AddrPortFrom(c.network.Host(), pilotPort).String(), "--secureGRPCAddr", "",
		"--monitoringAddr", "127.0.0.1:15014", "--ctrlz_port", "0")
	cmd.Env = append(os.Environ(), "POD_NAME=pilot", "POD_NAMESPACE=istio-system", "PILOT_ENABLE_ALPN_FILTER=false", "PILOT_ENABLE_METADATA_EXCHANGE=false",
		"ENABLE_GATEWAY_API_INFERENCE_EXTENSION=true")
	log := c.logFile("pilot")
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = dir, log, log, childprocess.DieWithParent()
	testkit.NoError(c, cmd.Start())
	c.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if c.Failed() {
			text, _ := os.ReadFile(log.Name())
			c.Logf("pilot:\n%s", tail(string(text)))
		}
	})
	testkit.NoError(c, awaitPort(c.Context(), netip.AddrPortFrom(c.network.Host(), pilotPort)))
}

// bootstrap returns the bootstrap of a gateway's Envoy, which Istio's agent would make.
func (c *cluster) bootstrap(p podshim.Pod) []byte {
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
`, p.IP, p.Name, p.Namespace, p.ServiceAccount, c.network.Host(), pilotPort, gatewayAdmin)
}
