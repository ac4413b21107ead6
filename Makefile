# Entrain: see `make help`.

TOOLCHAIN := scripts/toolchain.sh
RUN       := $(TOOLCHAIN) run
NATIVE    := x86_64-unknown-linux-gnu
GUEST     := aarch64-unknown-linux-gnu
# What users start, and what the lab's machines run; the emulation of frequency hardware is for aarch64 only.
BINS      := entrain entrain-lab entrain-sim entrain-load
MACHINES  := entrain entrain-lab-agent entrain-load
EMULATION := entrain-cpufreq-emulation
PREFIX    ?= /usr/local
TRIPLE    ?= $(NATIVE)
FORMATTED := $(shell git ls-files -co --exclude-standard 'crates/*.bpf.c' 'crates/*.h' crates/lab-dilation/src/clock.c)

.DEFAULT_GOAL := help
.PHONY: fuzz-build help setup toolchain build lab results test lint unit search fuzz-short fuzz fuzz-merge audit miri complexity lab-test programs package package-arm64 package-rpm sbom package-test package-test-arm64 kubernetes-test install uninstall clean

help: ## this list
	@echo "Entrain: host and guest schedulers in step, on stock kernels. Targets:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install the few system packages that are missing (needs root; Debian 12 and 13)
	@scripts/setup.sh

toolchain: setup
	@$(TOOLCHAIN) ensure

build: toolchain ## build target/release/entrain, the lab, and what its machines run, for both architectures
	$(RUN) cargo build --release --locked --target $(NATIVE) -p entrain -p entrain-lab -p entrain-sim -p entrain-lab-agent -p entrain-workloads
	$(RUN) cargo build --release --locked --target $(GUEST) -p entrain -p entrain-lab-agent -p entrain-workloads -p entrain-cpufreq-emulation
	@mkdir -p target/release
	@for b in $(BINS); do ln -f target/$(NATIVE)/release/$$b target/release/$$b; done
	@scripts/provenance.sh >target/release/entrain-lab.commit

lab: build ## boot a KVM host with guests and show what overcommit costs them, stock and with Entrain
	target/release/entrain lab run tour --quick --html target/tour.html --json target/tour.json

results: build ## make docs/results/*.md and README.md's figures from what is stored there, *.json.gz and *.json
	target/release/entrain-lab report $(wildcard docs/results/*.json.gz) --markdown --into docs/results --readme README.md
	target/release/entrain-lab kernels $(patsubst %,--from %,$(wildcard docs/results/kernels*.json)) --readme README.md --page docs/results/kernels.md
	target/release/entrain-sim report $(wildcard docs/results/sim-*.json) --into docs/results

test: lint unit search fuzz-short lab-test ## formatting, lints, unit and property tests, some fuzzing, nested lab tests

lint: toolchain
	$(RUN) cargo fmt --check
	$(RUN) clang-format-19 --dry-run --Werror $(FORMATTED)
	$(RUN) cargo clippy --locked --workspace --all-targets -- -D warnings
	scripts/check-docs.sh

unit: toolchain
	$(RUN) cargo test --locked --workspace

# The program is the one that `unit` built: alone, its dependencies would be built once more, with other features.
# The rules that hold today; `entrain-sim search` without --rule also tells of those that do not yet (docs/sim.md).
search: toolchain ## draw worlds for SEARCH_SECONDS=120 and look for what must not be, in the simulator
	$(RUN) cargo test --locked --workspace --no-run
	target/$(NATIVE)/debug/entrain-sim search --seconds $${SEARCH_SECONDS:-120} --threads 2 \
		--rule failed --rule queue --rule budget --rule share
	target/$(NATIVE)/debug/entrain-sim search --races --seconds $${RACES_SECONDS:-60} --threads 2 \
		--rule idle --rule behind --rule failed --rule queue --rule budget --rule watchdog

fuzz-build: toolchain
	$(RUN) scripts/fuzz/fuzz.sh build

# Some seconds each, several at a time; the kept corpus is replayed by `unit` as well.
fuzz-short: fuzz-build
	FUZZ_SECONDS=$${FUZZ_SECONDS:-5} $(RUN) scripts/fuzz/fuzz.sh run

fuzz: fuzz-build ## fuzz every parser of foreign bytes, FUZZ_SECONDS=60 each, at most FUZZ_TOTAL=240 in all
	$(RUN) scripts/fuzz/fuzz.sh run

fuzz-merge: fuzz-build ## take what fuzzing found into the kept corpus
	$(RUN) scripts/fuzz/fuzz.sh merge

audit: toolchain ## licences, sources and known vulnerabilities of the dependencies (builds cargo-deny once)
	$(RUN) scripts/audit.sh

miri: ## run the channel's tests under Miri, where rustup has a nightly compiler with it
	scripts/miri.sh

# The program that renews the file has the file inside: it is built anew before the second architecture.
complexity: ## renew crates/host/complexity.json: the verifier's work with each program, in the lab's host machines
	for arch in aarch64 x86_64; do \
		make build && \
		target/release/entrain lab shell --arch $$arch --guests 0 -- entrain host --complexity renew >target/complexity.json && \
		grep -q host_dispatch target/complexity.json && \
		cp target/complexity.json crates/host/complexity.json || exit 1; \
	done

lab-test: build
	target/release/entrain lab run smoke --json target/smoke.json
	target/release/entrain lab run channel --quick --json target/channel.json
	target/release/entrain lab run gate --json target/gate.json

# The programs of the packages, for TRIPLE.
programs: toolchain
	$(RUN) cargo build --release --locked --target $(TRIPLE) -p entrain
	$(RUN) cargo build --profile agent --locked --target $(TRIPLE) -p entrain-guest
	ln -f target/$(TRIPLE)/agent/entrain-guest target/$(TRIPLE)/release/entrain-guest

package: programs ## build the Debian packages into target/package
	scripts/package.sh target/$(NATIVE)/release target/package

package-arm64: package ## the same for arm64
	$(MAKE) programs TRIPLE=$(GUEST)
	NATIVE=target/$(NATIVE)/release/entrain scripts/package.sh target/$(GUEST)/release target/package

package-rpm: programs ## build the RPM packages into target/package (needs root, once, for rpmbuild)
	scripts/package-rpm.sh target/$(NATIVE)/release target/package

sbom: toolchain ## write target/sbom.cdx.json: what is linked into the programs, for programs (builds cargo-cyclonedx once)
	$(RUN) scripts/sbom.sh target/sbom.cdx.json

package-test: package ## install, upgrade and purge the packages in a clean Debian and by rpm (needs root), check rules and dashboard
	scripts/package-test.sh target/$(NATIVE)/release
	scripts/package-rpm-test.sh target/$(NATIVE)/release
	scripts/check-packaging.sh

package-test-arm64: package-arm64 ## install, upgrade and purge those for arm64 in a clean Debian 13 by qemu-user (needs root)
	NATIVE=target/$(NATIVE)/release/entrain scripts/package-test.sh target/$(GUEST)/release trixie

# Half an hour the first time: Kubernetes is built.
kubernetes-test: build ## run packaging/kubernetes in a real cluster with an emulated node (needs root and Go)
	scripts/kubernetes/run.sh node

install: build ## install to PREFIX (default /usr/local)
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/bin $(BINS:%=target/release/%)
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/lib/entrain/x86_64 $(MACHINES:%=target/$(NATIVE)/release/%)
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/lib/entrain/aarch64 $(MACHINES:%=target/$(GUEST)/release/%) target/$(GUEST)/release/$(EMULATION)
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/entrain target/release/entrain-lab.commit

uninstall: ## remove what `make install` installed
	rm -f $(BINS:%=$(DESTDIR)$(PREFIX)/bin/%)
	rm -rf $(DESTDIR)$(PREFIX)/lib/entrain

clean: ## remove build results (the cache of images stays; see `entrain lab clean`)
	rm -rf target
