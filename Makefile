# Every target works in a clean clone with Go alone, but for those that say
# that they need Docker.

GO       ?= go
FUZZTIME ?= 10s
TESTFLAGS ?=

GOLANGCI_VERSION   := v2.15.0
PROMETHEUS_VERSION := v0.316.0
NATS_PACKAGE       := github.com/nats-io/nats-server/v2

TOOLS    := $(CURDIR)/.cache/tools
GOLANGCI := $(TOOLS)/golangci-lint-$(GOLANGCI_VERSION)/golangci-lint
PROM     := $(TOOLS)/prometheus-$(PROMETHEUS_VERSION)/prometheus

PROGRAMS     := loop-worker witness verifier projector refold
IMAGES       := $(PROGRAMS) nats-server prometheus
STATIC_BUILD := CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w'

.DEFAULT_GOAL := help
.PHONY: help build demo test race lint bench fuzz images compose-smoke clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build all programs, static, into bin/
	@mkdir -p bin
	$(STATIC_BUILD) -o bin/ $(PROGRAMS:%=./cmd/%)

demo: ## Run the demonstration: ends by itself within two minutes of the build
	@mkdir -p bin
	$(GO) build -o bin/ ./cmd/refold
	bin/refold demo

test: ## Run all tests
	$(GO) test $(TESTFLAGS) ./...

# internal/lint has nothing that runs beside something else, and its analyzers
# take minutes under the detector. test/crash and test/audit start a process for
# each kill, and test/tamper checks thousands of logs, which is slow under the
# detector: a sample does there.
race: ## Run the tests under the race detector
	$(GO) test -race -timeout 15m $(TESTFLAGS) $$($(GO) list ./... | grep -v -e /internal/lint$$ -e /test/crash$$ -e /test/audit$$ -e /test/tamper$$)
	$(GO) test -race -short -timeout 5m $(TESTFLAGS) ./test/crash ./test/audit ./test/tamper

lint: $(GOLANGCI) ## Run golangci-lint, built once into .cache/
	$(GO) vet ./...
	$(GOLANGCI) run ./...

bench: ## Run the benchmarks, then print the ratios that the project promises
	GO=$(GO) scripts/bench
	$(GO) run ./test/bench

fuzz: ## Run every fuzz target for FUZZTIME (10s)
	GO=$(GO) FUZZTIME=$(FUZZTIME) scripts/fuzz

images: $(PROM) ## Build the container images from static binaries (needs Docker)
	@mkdir -p dist
	$(STATIC_BUILD) -o dist/ $(PROGRAMS:%=./cmd/%)
	$(STATIC_BUILD) -o dist/nats-server $(NATS_PACKAGE)
	cp $(PROM) dist/prometheus
	scripts/ca-certificates > dist/ca-certificates.crt
	mkdir -p dist/keys
	set -e; for image in $(IMAGES); do \
		docker build --quiet --file deployments/Dockerfile --target $$image --tag refold/$$image:dev .; \
	done

compose-smoke: ## Drive one session through docker-compose.yml (needs Docker and the images)
	scripts/compose-smoke

clean: ## Remove what the other targets built, but for the tools in .cache/
	rm -rf bin dist

# Tools are pinned here and kept out of go.mod: their dependencies are not ours.
$(GOLANGCI):
	GOBIN=$(@D) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)

# Without service discovery Prometheus is a third of its size; ours is static.
$(PROM):
	CGO_ENABLED=0 GOBIN=$(@D) $(GO) install -trimpath -ldflags '-s -w' -tags remove_all_sd \
		github.com/prometheus/prometheus/cmd/prometheus@$(PROMETHEUS_VERSION)
