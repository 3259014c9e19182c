package contestant

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// requestTimeout is the routers' limit for one request in seconds; their own is 30 minutes.
const requestTimeout = "1200"

// kvAware is the policy of vLLM's router that follows the engines' KV events. It asks engines for the token
// ids of each prompt.
const kvAware = "kv_aware"

// vllmRouter returns vLLM's router with a policy.
func vllmRouter(policy string) Contestant {
	settings := []string{"--policy", policy, "--request-timeout-secs", requestTimeout, "--log-level", "error"}
	return Contestant{
		Name: "vllm-router-" + slug(policy), Settings: "vllm-router " + strings.Join(settings, " "),
		start: func(t Tools, e Engines, log *slog.Logger) (Router, error) {
			if t.VLLM == "" {
				return nil, errors.New("name the Python interpreter that has vllm_router: run `make routers`, and add -vllm-python")
			}
			flags := settings
			if policy == kvAware {
				flags = append(slices.Clone(settings), eventSources(e)...)
			}
			return newPythonRouter([]string{t.VLLM, "-m", "vllm_router.launch_router"}, flags, e, log)
		},
	}
}

// eventSources returns the flags that name the engines' KV events. Of engines without an address for them
// the router asks for it itself.
func eventSources(e Engines) (flags []string) {
	for _, r := range e.Replicas {
		if r.Events != "" {
			flags = append(flags, "--kv-event-source", r.URL+"=tcp://"+r.Events)
		}
		if r.Replay != "" {
			flags = append(flags, "--kv-event-replay-source", r.URL+"=tcp://"+r.Replay)
		}
	}
	if len(flags) > 0 {
		flags = append(flags, "--kv-event-block-size", strconv.Itoa(blockTokens), "--kv-event-model", e.Model)
	}
	return flags
}

// blockTokens is the size of the KV blocks of emulated engines, and vLLM's default.
const blockTokens = 16

// sglangRouter returns SGLang's model gateway with a policy. Without -1 it refuses the
// requests beyond the 256th.
func sglangRouter(policy string) Contestant {
	settings := []string{"--policy", policy, "--request-timeout-secs", requestTimeout, "--max-concurrent-requests", "-1", "--log-level", "error"}
	return Contestant{
		Name: "sglang-router-" + slug(policy), Settings: "sglang_router " + strings.Join(settings, " "),
		start: func(t Tools, e Engines, log *slog.Logger) (Router, error) {
			if t.SGLang == "" {
				return nil, errors.New("name the Python interpreter that has sglang_router: run `make routers`, and add -sglang-python")
			}
			return newPythonRouter([]string{t.SGLang, "-m", "sglang_router.launch_router"}, settings, e, log)
		},
	}
}

func slug(policy string) string { return strings.ToLower(strings.ReplaceAll(policy, "_", "-")) }

// newPythonRouter returns a router whose flags are those of vLLM's and SGLang's launchers.
func newPythonRouter(program, settings []string, e Engines, log *slog.Logger) (Router, error) {
	a, err := FreeAddresses(2)
	if err != nil {
		return nil, err
	}
	host, port, _ := net.SplitHostPort(a[0])
	_, metrics, _ := net.SplitHostPort(a[1])
	argv := append(slices.Concat(program, settings), "--host", host, "--port", port, "--prometheus-port", metrics, "--worker-urls")
	for _, r := range e.Replicas {
		argv = append(argv, r.URL)
	}
	return &process{argv: argv, address: a[0], probe: "/readiness", workers: len(e.Replicas), log: log}, nil
}

// envoyConcurrency is Envoy's worker threads, also in front of Cascade (package inprocess).
const envoyConcurrency = "2"

// envoy returns stock Envoy with a static cluster over the engines.
func envoy(policy string) Contestant {
	return Contestant{
		Name: "envoy-" + slug(policy), Settings: "envoy static cluster, lb_policy " + policy + ", --concurrency " + envoyConcurrency,
		start: func(t Tools, e Engines, log *slog.Logger) (Router, error) {
			if t.Envoy == "" {
				return nil, errors.New("name the program Envoy: run `make envoy`, and add -envoy")
			}
			a, err := FreeAddresses(1)
			if err != nil {
				return nil, err
			}
			config, err := envoyConfig(policy, a[0], e.Replicas)
			if err != nil {
				return nil, err
			}
			return &process{
				argv:    []string{t.Envoy, "-c", "{dir}/envoy.json", "--disable-hot-restart", "--concurrency", envoyConcurrency, "-l", "error"},
				address: a[0], probe: "/v1/models", files: map[string][]byte{"envoy.json": config}, log: log,
			}, nil
		},
	}
}

type object = map[string]any

// envoyConfig returns the static configuration of a listener at an address in front of the
// engines. Timeouts are off and circuit breakers raised: Envoy's defaults cut long answers
// and refuse the requests beyond the 1,024th.
func envoyConfig(policy, listen string, replicas []Replica) ([]byte, error) {
	var endpoints []object
	for _, r := range replicas {
		u, err := url.Parse(r.URL)
		if err != nil {
			return nil, fmt.Errorf("engine: %w", err)
		}
		address, err := envoyAddress(u.Host)
		if err != nil {
			return nil, fmt.Errorf("engine %s: %w", r.URL, err)
		}
		endpoints = append(endpoints, object{"endpoint": object{"address": address}})
	}
	at, err := envoyAddress(listen)
	if err != nil {
		return nil, err
	}
	const unlimited = 1 << 20
	manager := object{
		"@type":       "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
		"stat_prefix": "engines", "stream_idle_timeout": "0s",
		"route_config": object{"virtual_hosts": []object{{
			"name": "all", "domains": []string{"*"},
			"routes": []object{{"match": object{"prefix": "/"}, "route": object{"cluster": "engines", "timeout": "0s"}}},
		}}},
		"http_filters": []object{{"name": "envoy.filters.http.router", "typed_config": object{"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}},
	}
	return json.Marshal(object{"static_resources": object{
		"listeners": []object{{
			"name": "clients", "address": at,
			"filter_chains": []object{{"filters": []object{{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}}}},
		}},
		"clusters": []object{{
			"name": "engines", "type": "STATIC", "connect_timeout": "5s", "lb_policy": policy,
			"circuit_breakers": object{"thresholds": []object{{"max_connections": unlimited, "max_pending_requests": unlimited, "max_requests": unlimited}}},
			"load_assignment":  object{"cluster_name": "engines", "endpoints": []object{{"lb_endpoints": endpoints}}},
		}},
	}})
}

func envoyAddress(hostPort string) (object, error) {
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return nil, fmt.Errorf("port %q: %w", port, err)
	}
	return object{"socket_address": object{"address": host, "port_value": n}}, nil
}
