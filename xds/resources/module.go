package resources

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	wasmfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cascadeinfer/cascade/policies/length"
)

// MaxModule is the largest module in bytes: it is sent to proxies in one response.
const MaxModule = 8 << 20

// wasmRuntime is the Wasm runtime of stock Envoy builds.
const wasmRuntime = "envoy.wasm.runtime.v8"

// wasmMagic is the prefix of every WebAssembly module of version 1.
var wasmMagic = []byte("\x00asm\x01\x00\x00\x00")

// capabilities are the host calls that the module may use: the estimator reads and sets
// headers, reads bodies and rejects requests; it makes no calls to other services. The
// WASI calls are needed to start a Go program.
var capabilities = [...]string{
	"proxy_on_context_create", "proxy_on_vm_start", "proxy_on_configure", "proxy_on_request_headers",
	"proxy_on_request_body", "proxy_on_request_trailers", "proxy_on_done", "proxy_on_delete",
	"proxy_log", "proxy_get_buffer_bytes", "proxy_get_header_map_value", "proxy_replace_header_map_value",
	"proxy_remove_header_map_value", "proxy_get_property", "proxy_send_local_response",
	"args_get", "args_sizes_get", "environ_get", "environ_sizes_get", "clock_time_get", "random_get",
	"fd_write", "poll_oneoff", "sched_yield", "proc_exit",
}

// EstimatorModule is the estimator that proxies run themselves, encoded once because it
// is larger than the rest of a set. It is immutable.
type EstimatorModule struct {
	resource  *Resource
	bodyLimit int64
}

// NewModule returns the module of a proxy-wasm filter's code, as built from
// wasm/estimator; bodyLimit is as in Settings. The error says why the code is not accepted.
func NewModule(code []byte, bodyLimit int64) (*EstimatorModule, error) {
	bodyLimit = cmp.Or(bodyLimit, length.BodyLimit)
	if len(code) > MaxModule {
		return nil, fmt.Errorf("module of %d bytes: at most %d are sent to proxies", len(code), MaxModule)
	}
	if !bytes.HasPrefix(code, wasmMagic) {
		return nil, errors.New("not a WebAssembly module; build one with make estimator")
	}
	allowed := make(map[string]*wasmv3.SanitizationConfig, len(capabilities))
	for _, name := range capabilities {
		allowed[name] = new(wasmv3.SanitizationConfig)
	}
	plugin := &wasmv3.PluginConfig{
		Name:   LengthFilter,
		RootId: LengthFilter,
		// The module would receive a Struct in its binary encoding.
		Configuration: Wrap(wrapperspb.String(`{"read_body":true,"max_body":` + strconv.FormatInt(bodyLimit, 10) + `}`)),
		// A module that traps is passed by from then on.
		FailurePolicy: wasmv3.FailurePolicy_FAIL_OPEN,
		// Without it a request that waits for its body waits for ever.
		AllowOnHeadersStopIteration: wrapperspb.Bool(true),
		Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: &wasmv3.VmConfig{
			VmId:                        LengthFilter,
			Runtime:                     wasmRuntime,
			CapabilityRestrictionConfig: &wasmv3.CapabilityRestrictionConfig{AllowedCapabilities: allowed},
			Code: &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{
				Local: &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: code}},
			}},
		}},
	}
	r, err := Encode(ExtensionType, LengthFilter, &corev3.TypedExtensionConfig{
		Name:        LengthFilter,
		TypedConfig: Wrap(&wasmfilterv3.Wasm{Config: plugin}),
	})
	if err != nil {
		return nil, err
	}
	r.Unlisted = true
	return &EstimatorModule{r, bodyLimit}, nil
}

// Version returns the content hash with which clients acknowledge the module.
func (m *EstimatorModule) Version() string { return m.resource.Version }

// proveExtension checks the extension that proxies run themselves.
func proveExtension(r *Resource, c *corev3.TypedExtensionConfig) error {
	if c.Name != LengthFilter || !r.Unlisted {
		return fmt.Errorf("the only extension config is %q, and it must be unlisted", LengthFilter)
	}
	filter := new(wasmfilterv3.Wasm)
	if err := c.GetTypedConfig().UnmarshalTo(filter); err != nil {
		return err
	}
	switch p := filter.GetConfig(); {
	case p.GetFailurePolicy() != wasmv3.FailurePolicy_FAIL_OPEN:
		return errors.New("must fail open, or a broken module fails every request")
	case !p.GetAllowOnHeadersStopIteration().GetValue():
		return errors.New("must be allowed to stop headers alone, or a request that waits for its body never goes on")
	case !bytes.HasPrefix(p.GetVmConfig().GetCode().GetLocal().GetInlineBytes(), wasmMagic):
		return errors.New("must contain its code: a proxy that fetches it serves without it until then, and does not report that")
	case len(p.GetVmConfig().GetCapabilityRestrictionConfig().GetAllowedCapabilities()) == 0:
		return errors.New("must have a list of allowed capabilities; without one all are allowed")
	case p.GetVmConfig().GetAllowPrecompiled():
		return errors.New("must not allow precompiled code, which is not checked")
	}
	return nil
}
