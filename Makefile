# kvsteer: every task of the project. "make help" lists them.

GO      ?= go
ARGS    ?=
IMAGE   ?= docker.io/library/kvsteer
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
TOOLS   := $(GO) tool -modfile=tools/go.mod

# Race-detected end-to-end tests on two cores take minutes, and packages run one after the other, so that none is slow by another; the bound
# is for a hang.
TEST_TIMEOUT ?= 40m
FUZZ_TIME    ?= 20s
BENCH        ?= .
BENCH_TIME   ?= 1s

.DEFAULT_GOAL := help
.PHONY: help build image demo demo-vllm test dashboards-test lint bench fuzz soak format generate proto clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo '  make demo ARGS="--json FILE"   options of the demo: see bin/kvsteer demo --help'

build: ## Build the static binary bin/kvsteer
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-X main.version=$(VERSION)" -o bin/kvsteer ./cmd/kvsteer

# For a release build from its tag: the digest depends on the commit, its date and the version alone.
image: ## Build the container image for amd64 and arm64 into bin/image, without Docker
	@for arch in amd64 arm64; do \
	  CGO_ENABLED=0 GOOS=linux GOARCH=$$arch $(GO) build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$(VERSION)" \
	    -o bin/image/linux-$$arch/kvsteer ./cmd/kvsteer || exit 1; \
	done; \
	$(GO) -C deploy/image run . --name "$(IMAGE)" --version "$(VERSION)" --revision "$$(git rev-parse HEAD 2>/dev/null)" \
	  --date "$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || echo 0)}" --out ../../bin/image \
	  --binary linux/amd64=../../bin/image/linux-amd64/kvsteer --binary linux/arm64=../../bin/image/linux-arm64/kvsteer

demo: build ## Show kvsteer on a real Envoy with simulated engines, beside round robin (about a minute)
	@envoy="$$(scripts/envoy.sh)" && exec env ENVOY="$$envoy" bin/kvsteer demo $(ARGS)

demo-vllm: build ## Show kvsteer on two real vLLM engines on CPU (first time: some 6 GB to install; minutes)
	@$(GO) build -o bin/demo-vllm ./examples/vllm-cpu && settings="$$(examples/vllm-cpu/setup.sh)" && envoy="$$(scripts/envoy.sh)" && \
	eval "$$settings" && exec env ENVOY="$$envoy" bin/demo-vllm $(ARGS)

test: build ## Run all tests with the race detector, end-to-end tests on real Envoys included
	@KVSTEER_ENVOY_1_40="$$(scripts/envoy.sh 1.40.0)" && KVSTEER_ENVOY_1_37="$$(scripts/envoy.sh 1.37.0)" && \
	KVSTEER_PROMTOOL="$$(scripts/prometheus.sh)/promtool" && KVSTEER_SYSTEMD_ANALYZE="$$(scripts/systemd.sh)" && \
	KVSTEER_KUBERNETES_VALIDATE="$$(scripts/kubernetes.sh)" && \
	export KVSTEER_ENVOY_1_40 KVSTEER_ENVOY_1_37 KVSTEER_PROMTOOL KVSTEER_SYSTEMD_ANALYZE KVSTEER_KUBERNETES_VALIDATE && \
	$(GO) vet ./... && $(GO) test -race -p 1 -timeout $(TEST_TIMEOUT) $(ARGS) ./... && \
	$(GO) -C deploy/schema test ./... && $(GO) -C deploy/image test ./...

dashboards-test: ## Run every query of the dashboard and the alerts on a real Prometheus that reads a running site (a minute)
	@KVSTEER_ENVOY_1_40="$$(scripts/envoy.sh 1.40.0)" && KVSTEER_PROMETHEUS="$$(scripts/prometheus.sh)/prometheus" && \
	export KVSTEER_ENVOY_1_40 KVSTEER_PROMETHEUS && \
	$(GO) test -tags dashboards -run '^TestDashboardsLive$$' -count 1 -v -timeout 10m $(ARGS) ./deploy

lint: ## Check format, vet and lint
	@unformatted="$$($(TOOLS) gofumpt -l $$(git ls-files '*.go' ':!*.pb.go'))"; \
	if [ -n "$$unformatted" ]; then echo "not formatted (make format):"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(TOOLS) golangci-lint run ./...

format: ## Format the code
	$(TOOLS) gofumpt -w $$(git ls-files '*.go' ':!*.pb.go')

bench: ## Run the benchmarks (BENCH=regexp BENCH_TIME=1s)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCH_TIME) -benchmem $(ARGS) ./internal/... ./kvindex ./subscriber ./extproc ./cmd/kvsteer

fuzz: ## Run every fuzz target for FUZZ_TIME each
	@for package in $$($(GO) list ./...); do \
	  for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz'); do \
	    echo "$$package $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZ_TIME) -fuzzminimizetime 1s $$package || exit 1; \
	  done; \
	done

soak: build ## Run the soak tests on the real Envoy: 500 streams for 60 s, 2,000 long answers open; nodes, routers and engines broken for 3 minutes
	@KVSTEER_ENVOY_1_40="$$(scripts/envoy.sh 1.40.0)" && KVSTEER_ENVOY_1_37="$$(scripts/envoy.sh 1.37.0)" && \
	export KVSTEER_ENVOY_1_40 KVSTEER_ENVOY_1_37 && \
	$(GO) test -tags soak -run '^TestSoak' -count 1 -v -timeout 15m $(ARGS) ./e2e

generate: ## Write the generated parts of docs/ and THIRD_PARTY_NOTICES again
	$(GO) test ./internal/repocheck -run '^Test(Docs|Notices)$$' -count 1 -update

proto: ## Generate the code of the protocol between nodes and routers (needs protoc)
	scripts/proto.sh

clean: ## Remove what the targets built and fetched
	rm -rf bin .envoy .prometheus .kubernetes .systemd
