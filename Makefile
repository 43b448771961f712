# The recipes call scripts. `make help` lists the targets.

help:
	@echo "make run            run the PMDA with a sample producer; Ctrl-C ends it"
	@echo "make run NIXL=1.5.1 run it with real NIXL of that version from PyPI, without a GPU"
	@echo "make build          build target/release/pmdanixl"
	@echo "make install        install its files into PCP's directories (DESTDIR=...); then run Install there"
	@echo "make uninstall      remove these files; run Remove there first"
	@echo "make deb            the Debian package, in target/packages (docs/packages.md); make rpm: the RPM package"
	@echo "make release        both packages, a tarball with all crates, a bill of materials and checksums"
	@echo "make check          format, lints, documentation and all tests but the long ones"
	@echo "make check-full     make check and slow tests: a fresh Debian 12, Rust $$(sed -n 's/^rust-version = //p' Cargo.toml)"
	@echo "make fresh          make check and make run on a Debian 12 without a toolchain; needs root"
	@echo "make check-packages install, use, upgrade and remove the packages in fresh roots; SUITES=sid for one"
	@echo "make matrix         one binary with PCP 6.0, 6.3 and 7.2 on Debian 12, 13 and sid; ROWS=13 for one row"
	@echo "make torture        2,000 kills of each kind under load, a kill after each instruction of a drain, six failures"
	@echo "                    of each system call on rings and state, hostile files, 50 restarts of real NIXL"
	@echo "make soak           hundreds of agents start and exit; MINUTES=10"
	@echo "make bench          measure drains, fetches, memory and CPU time for docs/speed.md; QUICK=1: into target/; ONLY=\"load push\": print some"
	@echo "make uprobes        measure what uprobes on libnixl cost a transfer, for docs/speed.md; as root; ONLY=\"sm-4k tcp-4k\": print some"
	@echo "make compare        pmdanixl beside NIXL's own exporters under one load of real NIXL (docs/testing.md); RUNS=5 SECONDS=10"
	@echo "make engines        real vLLM servers on this host's CPUs: figures, labels, kills (docs/testing.md); STEPS=\"pull tp2\" for some"
	@echo "make gpu            real NIXL on this host's GPU, seen by pmdanixl (docs/testing.md); HOST_MEMORY=1 without a GPU; PACK=DIR"
	@echo "make fleet          three hosts in namespaces: archives, Redis, queries, a lost connection (docs/fleet.md)"
	@echo "                    HOSTS=5,20,50: measure a pmlogger farm, Redis and Prometheus with so many hosts; as root"
	@echo "make fleet-cost     measure archives and Redis of a host with 8, 64, 512 and 1,000 agents (docs/fleet.md)"
	@echo "make scrape-cost    measure Prometheus scrapes of a host with 8, 64, 512 and 4,000 agents (docs/grafana.md)"
	@echo "make loc            lines of code in src by module, without unit tests, comments and blank lines"
	@echo "make against        compare the values and the CPU time of this build with an earlier one under the same load; BASE=COMMIT,"
	@echo "                    as root; PART=beside, state or cost for one"
	@echo "make fuzz           run each fuzz target; SECONDS=60 for each"
	@echo "make mutants        check that tests detect small changes of the code (qa/mutants/run --help); SHARD=1/20 or DIFF=main for some"
	@echo "make dashboard      build share/dashboard/index.html from its sources; needs npm"
	@echo "make clean          remove what was built"

build:
	@scripts/setup build && . scripts/env && cargo build --release --locked

run:
	@scripts/run

check:
	@scripts/check

check-full:
	@scripts/check-full

fresh:
	@scripts/check-full fresh-root

matrix:
	@scripts/check-full matrix

deb:
	@scripts/setup package && scripts/deb

rpm:
	@scripts/setup package && scripts/rpm

release:
	@scripts/setup package && scripts/release

check-packages:
	@scripts/check-full deb rpm selinux release

torture:
	@scripts/setup check && CARGO_PROFILE_DEV_OPT_LEVEL=1 KILLS=2000 PAIRS=4000 TORTURE=1 HOSTILE_SECONDS=300 RESTARTS=50 NEXTEST_PROFILE=torture qa/run --jobs 2 \
		configurations crash single_step every_instruction hostile_directory nixl_restarts faults

fuzz:
	@scripts/fuzz $(or $(SECONDS),60)

mutants:
	@scripts/setup mutants && . scripts/env && qa/mutants/run $(if $(SHARD),--shard $(SHARD)) $(if $(DIFF),--diff $(DIFF))

MINUTES ?= 10
soak:
	@scripts/setup check && . scripts/env && MINUTES=$(MINUTES) cargo test --locked --test qa agents::soak:: -- --ignored --nocapture

bench:
	@scripts/bench

uprobes:
	@scripts/uprobes

compare:
	@scripts/compare $(or $(RUNS),5) $(or $(SECONDS),10)

engines:
	@scripts/engines

gpu:
	@scripts/gpu

fleet:
	@$(if $(HOSTS),scripts/setup check && qa/fleet-hosts --hosts $(HOSTS),scripts/fleet)

loc:
	@scripts/loc

against:
	@scripts/setup check && . scripts/env && qa/against/run --base "$(BASE)" $(if $(PART),--part $(PART))

fleet-cost:
	@scripts/setup check && qa/fleet-cost

scrape-cost:
	@scripts/setup bench && qa/scrape-cost

install:
	@scripts/install-files

uninstall:
	@scripts/install-files --remove

dashboard:
	@scripts/dashboard

clean:
	@. scripts/env && cargo clean && rm -f help.dir help.pag

.PHONY: help build run deb rpm release check check-full fresh check-packages matrix torture soak bench uprobes compare engines gpu fleet fleet-cost scrape-cost loc against fuzz mutants install uninstall dashboard clean
