#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# qa/install.sh BINARY
#
# Tests make install, Install, Remove and Upgrade with PCP's own start-up script and pmcd. It runs in new namespaces with its own
# file systems, so it does not affect this host's pmcd, processes and files. It prints a line `ok NAME` or `FAIL NAME: REASON` for
# each test. The exit code is 1 if a test failed, and 77 without permission to create namespaces.
set -eu

top=$(cd "$(dirname "$0")/.." && pwd)
if [ "${1:-}" != --inside ]; then
    binary=$(realpath "${1:-$top/target/release/pmdanixl}")
    namespaces="unshare --mount --net --pid --uts --ipc --fork --kill-child --mount-proc"
    if ! $namespaces true 2>/dev/null; then
        echo "qa/install.sh: skipped: cannot create namespaces (needs root with CAP_SYS_ADMIN)"
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
# all_served: pmcd serves all names of this version, and one process runs pmdanixl
all_served() {
    pmda_up || { echo "pmcd.agent.status is not 0"; pminfo -f pmcd.agent.status; return 1; }
    pminfo -m nixl | sort >"$work/served"
    pminfo -m -n "$top/root" nixl | sort | diff - "$work/served" || return 1
    # Clusters 0 to 3 are the metrics of the Python PMDA. They must not return an error.
    sed -n 's/ PMID: 39\.[0-3]\..*//p' "$work/served" | xargs pmprobe >"$work/probe"
    [ "$(wc -l <"$work/probe")" = 20 ] || { cat "$work/probe"; return 1; }
    ! awk '$2 < 0' "$work/probe" | grep . || return 1
    pminfo -t nixl.transfer.tx_bytes | grep '\[.\+\]' >/dev/null || { echo "no help text"; return 1; }
    pminfo -d nixl_derived.mean.size | grep 'byte / count' >/dev/null || { echo "no derived metrics"; return 1; }
    tools_find_files || return 1
    line=$(printf 'nixl\t39\tpipe\tbinary \t\t%s -d 39' "$pmda/pmdanixl")
    [ "$(sed -n '/^[[:space:]]*nixl/s/ *$//p' "$PCP_PMCDCONF_PATH")" = "$line" ] || { cat "$PCP_PMCDCONF_PATH"; return 1; }
    [ "$(pgrep -c -f "$pmda/pmdanixl")" = 1 ] || { pgrep -a -f "$pmda"; return 1; }
}
# tools_find_files: PCP's tools find the files of this project
tools_find_files() {
    rm -f "$work/pmlogger.conf" "$work/pmie.conf"
    pmlogconf -c -q "$work/pmlogger.conf" >"$work/pmlogconf" 2>&1 || { cat "$work/pmlogconf"; return 1; }
    grep '^#+ nixl/summary:y:' "$work/pmlogger.conf" >/dev/null || { grep '^#+' "$work/pmlogger.conf"; return 1; }
    pmieconf -f "$work/pmie.conf" rules disabled >"$work/rules" || return 1
    grep 'nixl\.ring_full' "$work/rules" >/dev/null || { cat "$work/rules"; return 1; }
    pmrep -C :nixl :nixl-latency :nixl-loss :nixl-transport :nixl-vllm || return 1
    pcp dstat --list | grep 'nixl-loss' >/dev/null || { echo "no plugin of dstat"; return 1; }
    cmp share/htop/meters/nixl "$PCP_SYSCONF_DIR/htop/meters/nixl" || return 1
    for view in NIXL NIXL-latency NIXL-loss NIXL-transport; do
        cmp share/pmchart/$view "$PCP_VAR_DIR/config/pmchart/$view" || return 1
    done
}
python_gone() {
    ! pgrep -a -f pmdanixl.python || return 1
    find "$pmda/" -name '*.save' -o -name '*.python' ! -name pmdanixl.python -o -name '.NeedInstall*' >"$work/left"
    [ ! -s "$work/left" ] || { cat "$work/left"; return 1; }
    [ "$PCP_PMDASADM_DIR" = "$PCP_PMDAS_DIR" ] || {
        [ "$(readlink "$pmda/pmns")" = "$PCP_PMDASADM_DIR/nixl/pmns" ] &&
            [ "$(readlink "$pmda/domain.h")" = "$PCP_PMDASADM_DIR/nixl/domain.h" ]
    } || { ls -l "$pmda"; return 1; }
}

pmda_ended() {
    ! pgrep -a -f "$pmda/pmdanixl"
}

# snapshot FILE: writes all paths of PCP, the lines of pmcd.conf and the name space, sorted, because PCP sorts pmcd.conf at each
# Install. It leaves out what pmcd and its other PMDAs write: their logs, pmcd.conf.prev, the caches of other domains, and the lock
# of the name space.
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

# install_python_pmda: a PMDA like PCP's Python PMDA, with its directory, its domain and some of its metrics, installed by PCP's own
# procedure
install_python_pmda() {
    mkdir -p "$pmda"
    rm -f "$pmda/Install"
    cp qa/python_pmda/Install qa/python_pmda/pmdanixl.python "$pmda/"
    chmod +x "$pmda/Install"
    in_pmda ./Install
    [ "$(pmprobe -v nixl.transfer.tx_bytes)" = "nixl.transfer.tx_bytes 1 42" ] || return 1
}
# With an umask that the files must not depend on.
install_files() {
    (umask 077 && BINARY=$binary scripts/install-files)
}
install_pmda() {
    (umask 077 && in_pmda ./Install)
}
remove_pmda() {
    (umask 077 && in_pmda ./Remove)
}
# pcp_user_can_read: the user pcp can read the files and the name space
pcp_user_can_read() {
    find "$pmda/" "$PCP_PMDASADM_DIR/nixl" "$PCP_VAR_DIR/pmns/root" "$PCP_SYSCONF_DIR" "$PCP_VAR_DIR/config" "$PCP_SHARE_DIR/nixl" \
        "$PCP_MAN_DIR/man1" "$PCP_MAN_DIR/man5" \( -path '*nixl*' -o -path '*pmns*' \) \( ! -perm -o=r -o -type d ! -perm -o=x \) -print >"$work/closed"
    [ ! -s "$work/closed" ] || { cat "$work/closed"; return 1; }
}

check "pmcd starts" start_pmcd
snapshot "$work/bare"
check "install files" install_files
check "Remove without an installation succeeds" in_pmda ./Remove
# A fake dpkg-query that claims the files for a package.
mkdir "$work/packaged"
printf '#!/bin/sh\n[ "$2" = "%s" ] && echo "pmdanixl: $2"\n' "$PCP_PMDASADM_DIR/nixl/pmdanixl" >"$work/packaged/dpkg-query"
chmod +x "$work/packaged/dpkg-query"
rejected_because_of_package() {
    ! PATH="$work/packaged:$PATH" BINARY=$binary scripts/install-files "$@" 2>"$work/refused" || return 1
    grep 'is of the package pmdanixl: remove that first' "$work/refused"
}
snapshot "$work/files"
check "installing over a package is rejected" rejected_because_of_package
check "uninstalling a package is rejected" rejected_because_of_package --remove
snapshot "$work/now"
check "a rejected installation changes nothing" same "$work/files" "$work/now"
check "uninstall files" scripts/install-files --remove
snapshot "$work/now"
check "uninstall restores the state before the installation" same "$work/bare" "$work/now"

check "install files again" install_files
check "the command pcp-nixl is installed" cmp share/pcp/pcp-nixl "$PCP_BINADM_DIR/pcp-nixl"
check "its modules are installed" diff -r share/pcp/pcp_nixl "$PCP_BINADM_DIR/pcp_nixl"
check "the dashboard page is installed" cmp share/dashboard/index.html "$PCP_SHARE_DIR/nixl/dashboard.html"
snapshot "$work/files"
# The mark of an automatic Install that failed.
touch "$pmda/.NeedInstall.failed"
check "Install" install_pmda
check "all names served" all_served
check "the user pcp can read the installed files" pcp_user_can_read
check "no .NeedInstall is left" python_gone

cp "$PCP_PMCDCONF_PATH" "$work/conf"
check "pmcd restarts" start_pmcd
wait_for pmda_up || true
check "all names served after a restart" all_served
check "Upgrade does not change pmcd.conf" cmp "$PCP_PMCDCONF_PATH" "$work/conf"
in_pmda ./Upgrade >"$work/silent" 2>&1 || true
check "Upgrade without work prints nothing" cmp "$work/silent" /dev/null

conf=$PCP_SYSCONF_DIR/nixl/nixl.conf
cp "$conf" "$work/nixl.conf"
printf '[nixl]\nretian = "1s"\n' >"$conf"
if in_pmda ./Install >"$work/mistaken" 2>&1; then
    bad "Install reports a mistake in nixl.conf: it exits with 0"
else
    check "Install reports a mistake in nixl.conf" grep 'nixl.conf:2: retian' "$work/mistaken"
fi
cp "$work/nixl.conf" "$conf"
check "Install again" in_pmda ./Install
check "all names served after the second Install" all_served
check "uninstall is rejected while pmcd uses the PMDA" sh -c '! scripts/install-files --remove'
# Files that the PMDA writes after it has found agents.
touch "$PCP_VAR_DIR/config/pmda/39.0" "$PCP_VAR_DIR/config/pmda/39.3"
mkdir -p "$PCP_RUN_DIR/nixl"
touch "$PCP_RUN_DIR/nixl/state"
check "Remove" remove_pmda
cp "$work/out" "$work/removed"
check "Remove says whose counters are deleted" grep '^Remove: deletes the counters of all agents (0 are shown now) and of the host' "$work/removed"
check "Remove ends the PMDA" pmda_ended
check "Remove keeps the instance ids" rm "$PCP_VAR_DIR/config/pmda/39.0"
check "the user pcp can read the files after Remove" pcp_user_can_read
snapshot "$work/now"
check "Remove restores the state before Install" same "$work/files" "$work/now"
check "Install after Remove" in_pmda ./Install
check "all names served again" all_served

# As with an older version of this PMDA: a name space without some names.
(cd "$PCP_VAR_DIR/pmns" && "$PCP_BINADM_DIR/pmnsdel" -n root nixl.errors)
check "pmcd restarts with an older version's names" start_pmcd
check "Upgrade brings the new names" all_served
check "Remove after Upgrade of the name space" in_pmda ./Remove

# A PMDA that cannot start. The file replaces the link, so the installed binary is not overwritten.
rm -f "$pmda/pmdanixl"
printf '#!/bin/sh\nexit 1\n' >"$pmda/pmdanixl"
chmod +x "$pmda/pmdanixl"
touch "$pmda/.NeedInstall"
if in_pmda ./Install >"$work/refused" 2>&1; then
    bad "Install reports a PMDA that cannot start: it exits with 0"
else
    check "Install reports a PMDA that cannot start" grep 'the PMDA does not answer' "$work/refused"
fi
check "an Install that failed is repeated at the next start of pmcd" ls "$pmda/.NeedInstall"
check "Remove of a PMDA that cannot start" in_pmda ./Remove
check "uninstall" scripts/install-files --remove
snapshot "$work/now"
check "uninstall restores the first state" same "$work/bare" "$work/now"

# First the Python PMDA is installed, then the files of pmdanixl, then pmcd restarts.
check "a Python PMDA is installed" install_python_pmda
check "files are installed over the Python PMDA" install_files
sed -i 's|python3 \(.*pmdanixl.python\)|pmpython \1|' "$PCP_PMCDCONF_PATH"
check "pmcd restarts over the Python installation" start_pmcd
check "Upgrade replaces the Python PMDA" all_served
check "Upgrade leaves nothing that the Python PMDA's Install made" python_gone
check "Upgrade removes no program" rm "$pmda/pmdanixl.python"
check "Remove after Upgrade" in_pmda ./Remove
check "uninstall after Upgrade" scripts/install-files --remove
snapshot "$work/now"
check "uninstall after Upgrade restores the first state" same "$work/bare" "$work/now"

# The Python PMDA is installed over the files of pmdanixl, and saves some of them as *.save. Then pmdanixl's Install runs.
check "install files before the Python PMDA" install_files
check "a Python PMDA is installed over the files of pmdanixl" install_python_pmda
check "the Python PMDA saves files as *.save" ls "$pmda/pmns.save"
check "files are installed again" install_files
check "Install over the Python PMDA" in_pmda ./Install
check "all names served instead of the Python PMDA's" all_served
check "Install leaves nothing that the Python PMDA's Install made" python_gone
check "Install removes no program" rm "$pmda/pmdanixl.python"

# An edited configuration is kept.
echo "# edited" >>"$PCP_SYSCONF_DIR/nixl/nixl.conf"
check "install files with an edited nixl.conf" install_files
check "nixl.conf is kept" grep -q '# edited' "$PCP_SYSCONF_DIR/nixl/nixl.conf"
check "nixl.conf.new is the file of this version" cmp nixl.conf "$PCP_SYSCONF_DIR/nixl/nixl.conf.new"

# A host on which pmcd never ran.
check "Remove" in_pmda ./Remove
stop_pmcd
rm -f "$PCP_VAR_DIR/pmns/root"
# Without the variable, PCP calls systemctl, and systemd does not run here.
check "Install where pmcd and systemd do not run" in_pmda env -u PCPQA_SYSTEMD ./Install
check "all names served by the pmcd that Install started" all_served
wait_for setup_done $((setups + 1)) || true
stop_pmcd
exit $failed
