#!/bin/sh
# qa/install.sh BINARY
#
# Tries make install, Install, Remove and Upgrade with PCP's own start-up script and pmcd, in namespaces and file systems of
# its own: this host's pmcd, processes and files are not touched. Prints a line `ok NAME` or `FAIL NAME: why` for each
# test; the exit code is 1 if one failed, 77 if this needs more rights than it has.
set -eu

top=$(cd "$(dirname "$0")/.." && pwd)
if [ "${1:-}" != --inside ]; then
    binary=$(realpath "${1:-$top/target/release/pmdanixl}")
    namespaces="unshare --mount --net --pid --uts --ipc --fork --kill-child --mount-proc"
    if ! $namespaces true 2>/dev/null; then
        echo "qa/install.sh: skipped: cannot make namespaces (it takes root with CAP_SYS_ADMIN)"
        exit 77
    fi
    work=$(mktemp -d "${TMPDIR:-/tmp}/nixl-install.XXXXXX")
    trap 'rmdir "$work"' EXIT
    $namespaces "$0" --inside "$binary" "$work" &
    child=$!
    trap 'kill $child; wait $child; exit 1' HUP INT TERM
    wait $child && exit 0 || exit $?
fi
binary=$2
work=$3

. "$top/qa/layers"
cd "$top"

pmda=$PCP_PMDAS_DIR/nixl
. qa/checks
# All names of this version are served by pmcd, by an agent that runs our binary.
all_served() {
    agent_up || { echo "pmcd.agent.status is not 0"; pminfo -f pmcd.agent.status; return 1; }
    pminfo -m nixl | sort >"$work/served"
    pminfo -m -n "$top/root" nixl | sort | diff - "$work/served" || return 1
    # Clusters 0 to 3 are the metrics of the Python PMDA; they have values or none, never an error.
    sed -n 's/ PMID: 39\.[0-3]\..*//p' "$work/served" | xargs pmprobe >"$work/probe"
    [ "$(wc -l <"$work/probe")" = 20 ] || { cat "$work/probe"; return 1; }
    ! awk '$2 < 0' "$work/probe" | grep . || return 1
    pminfo -t nixl.transfer.tx_bytes | grep '\[.\+\]' >/dev/null || { echo "no help text"; return 1; }
    pminfo -d nixl_derived.mean.size | grep 'byte / count' >/dev/null || { echo "no derived metrics"; return 1; }
    tools_know_it || return 1
    line=$(printf 'nixl\t39\tpipe\tbinary \t\t%s -d 39' "$pmda/pmdanixl")
    [ "$(sed -n '/^[[:space:]]*nixl/s/ *$//p' "$PCP_PMCDCONF_PATH")" = "$line" ] || { cat "$PCP_PMCDCONF_PATH"; return 1; }
    [ "$(pgrep -c -f "$pmda/pmdanixl")" = 1 ] || { pgrep -a -f "$pmda"; return 1; }
}
# PCP's tools find our files where PCP's own are.
tools_know_it() {
    rm -f "$work/pmlogger.conf" "$work/pmie.conf"
    pmlogconf -c -q "$work/pmlogger.conf" >"$work/pmlogconf" 2>&1 || { cat "$work/pmlogconf"; return 1; }
    grep '^#+ nixl/summary:y:' "$work/pmlogger.conf" >/dev/null || { grep '^#+' "$work/pmlogger.conf"; return 1; }
    pmieconf -f "$work/pmie.conf" rules disabled >"$work/rules" || return 1
    grep 'nixl\.ring_full' "$work/rules" >/dev/null || { cat "$work/rules"; return 1; }
    pmrep -C :nixl :nixl-latency :nixl-loss :nixl-vllm || return 1
    pcp dstat --list | grep 'nixl-loss' >/dev/null || { echo "no plugin of dstat"; return 1; }
    cmp share/htop/meters/nixl "$PCP_SYSCONF_DIR/htop/meters/nixl" || return 1
    for view in NIXL NIXL-latency NIXL-loss; do
        cmp share/pmchart/$view "$PCP_VAR_DIR/config/pmchart/$view" || return 1
    done
}
python_gone() {
    ! pgrep -a -f pmdanixl.python || return 1
    find "$pmda/" -name '*.save' -o -name '*.python' -o -name '.NeedInstall*' >"$work/left"
    [ ! -s "$work/left" ] || { cat "$work/left"; return 1; }
    [ "$PCP_PMDASADM_DIR" = "$PCP_PMDAS_DIR" ] || {
        [ "$(readlink "$pmda/pmns")" = "$PCP_PMDASADM_DIR/nixl/pmns" ] &&
            [ "$(readlink "$pmda/domain.h")" = "$PCP_PMDASADM_DIR/nixl/domain.h" ]
    } || { ls -l "$pmda"; return 1; }
}

agent_gone() {
    ! pgrep -a -f "$pmda/pmdanixl"
}

# snapshot FILE: every path of PCP, the lines of pmcd.conf and the name space; the order of the lines is PCP's business,
# which sorts them at each Install. Left out is what pmcd and its other agents write: their logs, pmcd.conf.prev, the caches
# of other domains, and the lock of the name space.
snapshot() {
    {
        find /etc/pcp "$PCP_VAR_DIR" "$PCP_LOG_DIR" "$PCP_RUN_DIR" "$PCP_PMDASADM_DIR" "$PCP_BINADM_DIR" "$PCP_MAN_DIR/man1" "$PCP_MAN_DIR/man5" \
            "$PCP_SHARE_DIR" "$PCP_TMPFILE_DIR" -printf '%y %p -> %l\n' |
            grep -v -e 'pmcd\.conf\.prev' -e 'pmcd/[^/]*\.log' -e 'config/pmda/[0-9]' -e 'pmns/root\.lock'
        ls "$PCP_LOG_DIR/pmcd/nixl.log"* "$PCP_VAR_DIR/config/pmda/39."* 2>/dev/null || true
        grep . "$PCP_PMCDCONF_PATH"
        pminfo -m -n "$PCP_VAR_DIR/pmns/root"
    } | sort >"$1"
}
same() {
    diff "$1" "$2"
}

# A PMDA as PCP's Python one: same place, same domain, some of its metrics, installed by PCP's own procedure.
python_pmda() {
    mkdir -p "$pmda"
    rm -f "$pmda/Install"
    cp qa/python_pmda/Install qa/python_pmda/pmdanixl.python "$pmda/"
    chmod +x "$pmda/Install"
    in_pmda ./Install
    [ "$(pmprobe -v nixl.transfer.tx_bytes)" = "nixl.transfer.tx_bytes 1 42" ] || return 1
}
# As root with another umask, which is not what the files are made with.
install_files() {
    (umask 077 && BINARY=$binary scripts/install-files)
}
install_pmda() {
    (umask 077 && in_pmda ./Install)
}
remove_pmda() {
    (umask 077 && in_pmda ./Remove)
}
# What PCP runs as its own user reads our files and the name space.
pcp_reads_it() {
    find "$pmda/" "$PCP_PMDASADM_DIR/nixl" "$PCP_VAR_DIR/pmns/root" "$PCP_SYSCONF_DIR" "$PCP_VAR_DIR/config" "$PCP_SHARE_DIR/nixl" \
        "$PCP_MAN_DIR/man1" "$PCP_MAN_DIR/man5" \( -path '*nixl*' -o -path '*pmns*' \) \( ! -perm -o=r -o -type d ! -perm -o=x \) -print >"$work/closed"
    [ ! -s "$work/closed" ] || { cat "$work/closed"; return 1; }
}

check "pmcd starts" start_pmcd
snapshot "$work/bare"
check "install files" install_files
check "Remove where nothing is installed" in_pmda ./Remove
# As if they were of a package.
mkdir "$work/packaged"
printf '#!/bin/sh\n[ "$2" = "%s" ] && echo "pmdanixl: $2"\n' "$PCP_PMDASADM_DIR/nixl/pmdanixl" >"$work/packaged/dpkg-query"
chmod +x "$work/packaged/dpkg-query"
refused_over_a_package() {
    ! PATH="$work/packaged:$PATH" BINARY=$binary scripts/install-files "$@" 2>"$work/refused" || return 1
    grep 'is of the package pmdanixl: remove that first' "$work/refused"
}
snapshot "$work/files"
check "files over a package are refused" refused_over_a_package
check "uninstalling those of a package is refused" refused_over_a_package --remove
snapshot "$work/now"
check "and nothing has changed" same "$work/files" "$work/now"
check "uninstall files" scripts/install-files --remove
snapshot "$work/now"
check "uninstall leaves nothing of the first install" same "$work/bare" "$work/now"

check "install files again" install_files
check "pcp knows its command" cmp share/pcp/pcp-nixl "$PCP_BINADM_DIR/pcp-nixl"
check "the page is there" cmp share/dashboard/index.html "$PCP_SHARE_DIR/nixl/dashboard.html"
snapshot "$work/files"
check "Install" install_pmda
check "all names served" all_served
check "the user pcp can read all of it" pcp_reads_it
check "no mark is left" python_gone

cp "$PCP_PMCDCONF_PATH" "$work/conf"
check "pmcd restarts" start_pmcd
wait_for agent_up || true
check "all names served after a restart" all_served
check "Upgrade has nothing to do" cmp "$PCP_PMCDCONF_PATH" "$work/conf"
in_pmda ./Upgrade >"$work/silent" 2>&1 || true
check "Upgrade is silent then" cmp "$work/silent" /dev/null

check "Install over itself" in_pmda ./Install
check "all names served after the second Install" all_served
check "uninstall is refused while installed" sh -c '! scripts/install-files --remove'
# What it writes once it has seen agents.
touch "$PCP_VAR_DIR/config/pmda/39.0" "$PCP_VAR_DIR/config/pmda/39.3"
mkdir -p "$PCP_RUN_DIR/nixl"
touch "$PCP_RUN_DIR/nixl/state"
check "Remove" remove_pmda
check "Remove ends the agent" agent_gone
check "the user pcp can read what is left" pcp_reads_it
snapshot "$work/now"
check "Remove leaves nothing" same "$work/files" "$work/now"
check "Install after Remove" in_pmda ./Install
check "all names served again" all_served

# The state of an older version of this PMDA: a name space without some of our names.
(cd "$PCP_VAR_DIR/pmns" && "$PCP_BINADM_DIR/pmnsdel" -n root nixl.errors)
check "pmcd restarts with an older version's names" start_pmcd
check "Upgrade brings the new names" all_served
check "Remove after it" in_pmda ./Remove

# An agent that cannot start. Its file is ours, not a link, so that the installed binary stays.
rm -f "$pmda/pmdanixl"
printf '#!/bin/sh\nexit 1\n' >"$pmda/pmdanixl"
chmod +x "$pmda/pmdanixl"
if in_pmda ./Install >"$work/refused" 2>&1; then
    bad "Install reports an agent that cannot start: it exits with 0"
else
    check "Install reports an agent that cannot start" grep 'the PMDA does not answer' "$work/refused"
fi
check "Remove after that" in_pmda ./Remove
check "uninstall" scripts/install-files --remove
snapshot "$work/now"
check "uninstall leaves nothing" same "$work/bare" "$work/now"

# PCP's Python PMDA is installed, then come our files, then the next start of pmcd.
check "a Python PMDA is installed" python_pmda
check "our files come over it" install_files
sed -i 's|python3 \(.*pmdanixl.python\)|pmpython \1|' "$PCP_PMCDCONF_PATH"
check "pmcd restarts over the Python installation" start_pmcd
check "Upgrade takes over" all_served
check "Upgrade leaves nothing of the Python PMDA" python_gone
check "Remove after Upgrade" in_pmda ./Remove
check "uninstall after Upgrade" scripts/install-files --remove
snapshot "$work/now"
check "and leaves nothing" same "$work/bare" "$work/now"

# The Python PMDA was installed over our files, which keeps some of them as *.save; then our Install is run.
check "our files" install_files
check "a Python PMDA is installed over them" python_pmda
check "it keeps files of ours as *.save" ls "$pmda/pmns.save"
check "our files come back" install_files
check "Install over the Python PMDA" in_pmda ./Install
check "all names served instead of the Python PMDA's" all_served
check "Install leaves nothing of the Python PMDA" python_gone

# An edited configuration survives.
echo "# edited" >>"$PCP_SYSCONF_DIR/nixl/nixl.conf"
check "files over an edited nixl.conf" install_files
check "nixl.conf is kept" grep -q '# edited' "$PCP_SYSCONF_DIR/nixl/nixl.conf"
check "nixl.conf.new is this version's" cmp nixl.conf "$PCP_SYSCONF_DIR/nixl/nixl.conf.new"

# A host where pmcd does not run, and never did.
check "Remove" in_pmda ./Remove
stop_pmcd
rm -f "$PCP_VAR_DIR/pmns/root"
check "Install where pmcd never ran" in_pmda ./Install
check "all names served by the pmcd that it started" all_served
wait_for setup_done $((turns + 1)) || true
stop_pmcd
exit $failed
