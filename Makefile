# Everything is in the scripts; `make help` says what there is.

help:
	@echo "make run            show the PMDA at work, with a sample producer; Ctrl-C ends it"
	@echo "make run NIXL=1.5.1 the same with real NIXL of that version, from PyPI; no GPU is needed"
	@echo "make build          build target/release/pmdanixl"
	@echo "make install        put it where PCP has its PMDAs (DESTDIR=...); then run Install there"
	@echo "make uninstall      undo that; run Remove there first"
	@echo "make deb            the Debian package, in target/packages (docs/packages.md); make rpm: the RPM package"
	@echo "make release        both, the tarball with all crates, a bill of materials and checksums"
	@echo "make check          format, lints, documentation and all tests but those of qa/long: 6 to 12 minutes"
	@echo "make check-full     what takes too long for check: a fresh Debian 12, Rust $$(sed -n 's/^rust-version = //p' Cargo.toml)"
	@echo "make fresh          make check and make run on a Debian 12 without a toolchain; takes root"
	@echo "make check-packages the packages in fresh roots: installed, used, upgraded, removed; SUITES=sid for one of them"
	@echo "make matrix         Debian 12, 13 and sid: PCP 6.0, 6.3 and 7.2, one binary for all of them; ROWS=13 for one row"
	@echo "make torture        2,000 kills of each kind under load, one after each instruction of a drain, each system call"
	@echo "                    on rings and state failing in each of six ways, hostile files, 50 restarts of real NIXL"
	@echo "make soak           agents come and go by the hundred; MINUTES=10"
	@echo "make bench          drains, fetches, memory and processor time beside references, into docs/speed.md; QUICK=1: into target/"
	@echo "make engines        real vLLM servers on this host's processors: figures, labels, kills (docs/testing.md); STEPS=\"pull tp2\" for some"
	@echo "make fleet          three hosts on this one, in namespaces: archives, Redis, queries, a host that is cut off (docs/fleet.md)"
	@echo "make fleet-cost     what a host costs in archives and in Redis, with 8, 64 and 1,000 agents (docs/fleet.md)"
	@echo "make loc            lines of code in src by module, without unit tests, comments and blank lines"
	@echo "make against        whether this build shows what an earlier one shows of the same load; BASE=COMMIT, as root"
	@echo "make fuzz           the fuzz targets, a minute each (SECONDS=600: ten)"
	@echo "make mutants        whether a test fails for each small change of the code (qa/mutants/run --help); SHARD=1/20 or DIFF=main for some"
	@echo "make dashboard      make share/dashboard/index.html anew of its sources; takes npm"
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
	@scripts/setup check && . scripts/env && KILLS=2000 TORTURE=1 HOSTILE_SECONDS=300 RESTARTS=50 cargo test --locked \
		--test ring --test state --test security -- \
		crash:: single_step:: every_instruction:: hostile_directory:: nixl_restarts:: faults::

fuzz:
	@scripts/fuzz $(or $(SECONDS),60)

mutants:
	@scripts/setup mutants && . scripts/env && qa/mutants/run $(if $(SHARD),--shard $(SHARD)) $(if $(DIFF),--diff $(DIFF))

MINUTES ?= 10
soak:
	@scripts/setup check && . scripts/env && MINUTES=$(MINUTES) cargo test --locked --test agents soak:: -- --nocapture

bench:
	@scripts/bench

engines:
	@scripts/engines

fleet:
	@scripts/fleet

loc:
	@scripts/loc

against:
	@scripts/setup check && . scripts/env && qa/against/run $(if $(BASE),--base $(BASE))

fleet-cost:
	@scripts/setup check && qa/fleet-cost

install:
	@scripts/install-files

uninstall:
	@scripts/install-files --remove

dashboard:
	@scripts/dashboard

clean:
	@. scripts/env && cargo clean && rm -f help.dir help.pag

.PHONY: help build run deb rpm release check check-full fresh check-packages matrix torture soak bench engines fleet fleet-cost loc against fuzz mutants install uninstall dashboard clean
