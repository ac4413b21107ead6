# Entrain: see `make help`.

TOOLCHAIN := scripts/toolchain.sh
RUN       := $(TOOLCHAIN) run
NATIVE    := x86_64-unknown-linux-gnu
GUEST     := aarch64-unknown-linux-gnu
BINS      := entrain entrain-load entrain-cpufreq-emulation
PREFIX    ?= /usr/local
BPF_C     := $(shell git ls-files -co --exclude-standard 'crates/*.bpf.c' 'crates/*.h')

.DEFAULT_GOAL := help
.PHONY: help setup toolchain build lab test lint unit lab-test package package-test install uninstall clean

help: ## this list
	@echo "Entrain: host and guest schedulers in step, on stock kernels. Targets:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install the few system packages that are missing (needs root; Debian 12 and 13)
	@scripts/setup.sh

toolchain: setup
	@$(TOOLCHAIN) ensure

build: toolchain ## build target/release/entrain and what the lab's machines run, for both architectures
	$(RUN) cargo build --release --locked --target $(NATIVE) --target $(GUEST) -p entrain -p entrain-workloads -p entrain-cpufreq-emulation
	@mkdir -p target/release
	@for b in $(BINS); do ln -f target/$(NATIVE)/release/$$b target/release/$$b; done

lab: build ## boot a KVM host with guests and show what overcommit costs them, stock and with Entrain
	target/release/entrain lab run overcommit --quick --html target/overcommit.html --json target/overcommit.json

test: lint unit lab-test ## formatting, lints, unit and property tests, nested lab tests

lint: toolchain
	$(RUN) cargo fmt --check
	$(RUN) clang-format-19 --dry-run --Werror $(BPF_C)
	$(RUN) cargo clippy --locked --workspace --all-targets -- -D warnings

unit: toolchain
	$(RUN) cargo test --locked --workspace

lab-test: build
	target/release/entrain lab run smoke --json target/smoke.json
	target/release/entrain lab run channel --quick --json target/channel.json

package: toolchain ## build the Debian packages into target/package
	$(RUN) cargo build --release --locked --target $(NATIVE) -p entrain -p entrain-guest
	scripts/package.sh target/$(NATIVE)/release target/package

package-test: package ## install, upgrade and purge the packages in a clean Debian (needs root), check rules and dashboard
	scripts/package-test.sh target/$(NATIVE)/release
	scripts/check-packaging.sh

install: build ## install to PREFIX (default /usr/local)
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/bin target/release/entrain target/release/entrain-load
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/lib/entrain/x86_64 $(BINS:%=target/$(NATIVE)/release/%)
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/lib/entrain/aarch64 $(BINS:%=target/$(GUEST)/release/%)

uninstall: ## remove what `make install` installed
	rm -f $(BINS:%=$(DESTDIR)$(PREFIX)/bin/%)
	rm -rf $(DESTDIR)$(PREFIX)/lib/entrain

clean: ## remove build results (the cache of images stays; see `entrain lab clean`)
	rm -rf target
