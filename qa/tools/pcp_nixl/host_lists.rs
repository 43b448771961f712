// SPDX-License-Identifier: GPL-2.0-or-later

//! Lists of hosts and directories of archives for `pcp nixl --hosts`.

use super::hosts::address;
use super::{pcp, python};
use crate::support::share::{Logger, archive, tool};
use crate::support::{Home, Pmcd, golden, output, run, text};
use serde_json::Value;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Stdio;

/// Writes archives of hosts for two intervals of a minute: a host that is well, and hosts of which each stands out.
fn farm(home: &Home) -> PathBuf {
    let farm = home.path("farm");
    let figures = "nixl.host.transfer.tx_bytes - 0 60000000 180000000\n\
                   nixl.host.transfer.rx_bytes - 0 0 6000\n\
                   nixl.host.agents.live - 2 2 2\nnixl.host.agents.idle - 0 0 0\n\
                   nixl.host.agents.exited - 0 0 1\nnixl.host.agents.unknown - 0 0 0\n\
                   nixl.host.ring.full - 3 3 3\nnixl.host.errors.total - 0 2 2\n\
                   nixl.latency.xfer_time.p99 a 900 1000 1100\nnixl.latency.xfer_time.p99 b 90 90 90\n";
    let server = "nixl.agent.server b vllm%20decode:8200 vllm%20decode:8200 vllm%20decode:8200\n\
                  nixl.agent.rank b TP1 TP1 TP1\n";
    let ratio = |value: f64| {
        format!("{server}nixl.latency.xfer_time.peer_ratio b {value} {value} {value}\n")
    };
    for (name, rest) in [
        ("well", ratio(1.5)),
        ("slow10", ratio(4.2)),
        ("slow9", ratio(3.1)),
        ("tcp", "nixl.agent.tcp_share a 0.1 0.98 0.98\n".into()),
        ("lost", "nixl.host.queue.dropped - 5 5 42\n".into()),
        ("hangs", "nixl.agent.stall.state a 0 2 2\n".into()),
        ("suspect", "nixl.agent.stall.state b 0 1 1\n".into()),
    ] {
        fs::create_dir_all(farm.join(name)).expect("made");
        archive(
            &farm.join(name).join("20231114"),
            60,
            &(figures.to_owned() + &rest),
        );
    }
    // Only what docs/fleet.md has a farm log; a host that was off at the end; one without NIXL; and a broken archive.
    for (name, table) in [
        (
            "totals",
            "nixl.host.transfer.tx_bytes - 0 60 120\nnixl.host.ring.full - 0 0 9\n",
        ),
        (
            "off",
            "nixl.host.transfer.tx_bytes - 0 60\nnixl.host.agents.live - 3 3\n",
        ),
        ("other", "network.interface.in.bytes eth0 0 1 2\n"),
    ] {
        fs::create_dir_all(farm.join(name)).expect("made");
        archive(&farm.join(name).join("20231114"), 60, table);
    }
    fs::create_dir_all(farm.join("broken")).expect("made");
    fs::write(farm.join("broken/20231114.meta"), "no archive").expect("written");
    fs::create_dir_all(farm.join("empty")).expect("made");
    farm
}

#[test]
fn archived_hosts_are_sorted_by_what_stands_out() {
    let home = Home::new();
    let farm = farm(&home);
    let mut shown = String::new();
    for (columns, options) in [
        ("80", &["-t", "60"][..]),
        ("120", &["-t", "60", "-S", "1min"]),
        ("50", &["-t", "60", "-1"]),
        ("100", &["-t", "60", "-s", "1", "-S", "1min", "-k", "tx"]),
        ("80", &["-t", "60", "-1", "-k", "host", "-Z", "EST5"]),
        ("80", &["-t", "60", "-1j"]),
    ] {
        let mut command = pcp(&home, tool("pcp"));
        command.env("COLUMNS", columns);
        let command = command.args(["nixl", "-H"]).arg(&farm).args(options);
        let said = output(command);
        assert!(
            said.status.success() && said.stderr.is_empty(),
            "{}",
            text(&said)
        );
        let said = String::from_utf8(said.stdout).expect("UTF-8");
        if !options.contains(&"-1j") {
            let width: usize = columns.parse().expect("a number");
            assert!(
                said.lines().all(|line| line.chars().count() < width),
                "{said}"
            );
        }
        writeln!(
            shown,
            "$ COLUMNS={columns} pcp nixl -H farm {}\n{said}",
            options.join(" ")
        )
        .expect("a string");
    }
    golden("pcp_nixl_hosts.out", &shown);
}

#[test]
fn archives_of_several_hosts_may_share_a_directory() {
    let home = Home::new();
    let path = home.path("shared");
    fs::create_dir(&path).expect("made");
    let [a, b] = [Home::new(), Home::new()];
    for (number, home) in [a, b].iter().enumerate() {
        let pmcd = Pmcd::start(home);
        // Both are of this host: their label must name others.
        let logger = Logger::start(&pmcd, &home.path("log"));
        logger.samples(3);
        drop(logger);
        for end in ["0", "index", "meta"] {
            let mut bytes = fs::read(home.path(&format!("log.{end}"))).expect("there");
            let own = fs::read("/proc/sys/kernel/hostname").expect("there");
            let own = own.trim_ascii_end();
            let name = format!("{:x<1$}", number, own.len());
            let at = bytes.windows(own.len()).position(|part| part == own);
            let at = at.expect("the label has the name of the host");
            bytes[at..at + own.len()].copy_from_slice(name.as_bytes());
            fs::write(path.join(format!("archive{number}.{end}")), bytes).expect("written");
        }
    }
    let mut command = pcp(&home, tool("pcp"));
    let command = command.args(["nixl", "-j", "-t", "0.5", "-H"]).arg(&path);
    let shown = run(command);
    let hosts: Vec<Value> = shown
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    for number in ["0", "1"] {
        let has_values = |line: &&Value| {
            let name = line["host"].as_str().expect("a name");
            name.trim_end_matches('x') == number && line["tx_bytes_per_second"] == 0.0
        };
        assert!(hosts.iter().any(|line| has_values(&line)), "{shown}");
    }
}

#[test]
fn list_of_hosts_has_comments_and_what_pmfind_prints() {
    let script = "
lines = '''# a comment
node1

  node2:44321   # with its port
pcp://10.1.0.3:44321
  pcp://10.1.0.4:44399
node1
local:
[fe80::1%eth0]
Discovered pmcd servers:
d6b1c3fb245987038d85c76cd36d94c0895f8eae node5
'''
import os
reader, writer = os.pipe()
os.dup2(reader, 0)
# As an editor on Windows writes it, with a name in another encoding.
os.write(writer, b'\\xef\\xbb\\xbf' + lines.lstrip().replace('\\n', '\\r\\n').encode() + b'caf\\xe9')
os.close(writer)
for target in nixl.read_targets('-'):
    print(target.name, target.address)
";
    assert_eq!(
        python(script),
        "node1 node1\nnode2 node2:44321\n10.1.0.3 pcp://10.1.0.3:44321\n10.1.0.4:44399 pcp://10.1.0.4:44399\n\
         local: local:\n[fe80::1%eth0] [fe80::1%eth0]\nnode5 node5\ncaf\u{fffd} caf\u{fffd}\n"
    );
}

#[test]
fn bad_list_of_hosts_is_reported_with_line_and_remedy() {
    let home = Home::new();
    let file = home.path("hosts");
    let many: String = (0..901).fold(String::new(), |list, host| list + &format!("host{host}\n"));
    for (content, options, expected) in [
        (
            "a\nb c\n",
            &[][..],
            ": line 2: 'b c': this is not one host: write one a line, as for pcp -h, and IPv6 in brackets\n",
        ),
        ("a\n::1\n", &[], ": line 2: '::1': this is not one host"),
        ("a:b\n", &[], ": line 1: 'a:b': this is not one host"),
        ("pcp://\n", &[], ": line 1: 'pcp://': this is not one host"),
        (
            "# none\n",
            &[],
            ": there is no host: write one a line, as for pcp -h\n",
        ),
        (
            &*many,
            &[],
            ": 901 hosts are too many: one command shows 900; split the list\n",
        ),
        (
            "a\n",
            &["-h", "b"],
            "--hosts: it has all hosts; leave out -h and -a, and -O for live hosts\n",
        ),
        (
            "a\n",
            &["-O", "1min"],
            "--hosts: it has all hosts; leave out -h and -a, and -O for live hosts\n",
        ),
        (
            "a\n",
            &["-H", "b"],
            "--hosts: give one list: a file can have all hosts\n",
        ),
        (
            "a\n",
            &["-k", "bw"],
            "--sort bw: there is no such column; use one of agents, bytes, err, host,",
        ),
        (
            "a\n",
            &["-S", "1min"],
            "time window options are supported for archives only\n",
        ),
    ] {
        fs::write(&file, content).expect("written");
        let mut command = pcp(&home, tool("pcp"));
        let said = output(command.args(["nixl", "-1", "-H"]).arg(&file).args(options));
        let status = said.status.code();
        let said = text(&said);
        assert!(status == Some(1) && said.contains(expected), "{said}");
    }
    let mut empty = pcp(&home, tool("pcp"));
    let said = output(empty.args(["nixl", "-H"]).arg(home.dir()));
    assert!(
        text(&said).contains(": there is no archive: name a directory of pmlogger"),
        "{}",
        text(&said)
    );
    let mut missing = pcp(&home, tool("pcp"));
    let said = output(missing.args(["nixl", "-H"]).arg(home.path("none")));
    assert!(
        text(&said).contains("none: No such file or directory: name a file with"),
        "{}",
        text(&said)
    );
    let mut closed = pcp(&home, tool("sh"));
    let said = output(closed.args(["-c", "pcp nixl -H - <&-"]));
    assert!(
        text(&said).starts_with("pcp-nixl: --hosts -: Bad file descriptor: name a file with"),
        "{}",
        text(&said)
    );
}

/// A directory that another user may not read, and one whose name is not UTF-8, cost no other host of a farm.
#[test]
fn unusable_directory_of_a_farm_is_a_host_with_the_reason() {
    let home = Home::new();
    let farm = home.path("farm");
    for name in [&b"good"[..], b"closed", b"caf\xe9"] {
        let path = farm.join(OsStr::from_bytes(name));
        fs::create_dir_all(&path).expect("made");
        fs::write(path.join("1.meta"), "").expect("written");
    }
    let script = format!(
        "
import os
list_all = os.listdir
def listdir(path):
    if path.endswith('closed'):
        raise PermissionError(13, 'Permission denied')
    return list_all(path)
nixl.os.listdir = listdir
for target in nixl.read_targets('{}'):
    try:
        target.context()
    except nixl.pmapi.pmErr as error:
        print(target.name, nixl.Failure('', error, None, None).error, target.can_open())
",
        farm.display()
    );
    let missing = "Missing PCP archive log file False";
    assert_eq!(
        python(&script),
        format!(
            "caf%3F Invalid or incomplete multibyte or wide character False\nclosed {missing}\ngood {missing}\n"
        )
    );
}

/// Of live hosts, -Z and -T need no context.
#[test]
fn time_zone_and_end_are_those_of_the_options() {
    let home = Home::new();
    let list = home.path("hosts");
    fs::write(&list, "127.0.0.1:1\n").expect("written");
    let script = format!(
        "
sys.argv = ['pcp-nixl', '-H', '{}', '-1', '-t', '0.1', '-Z', 'EST5']
options = nixl.Options()
options.parse()
importlib.import_module('pcp_nixl.fleet').current_time = lambda: 0
nixl.run_hosts(options, options.targets)
",
        list.display()
    );
    assert!(
        python(&script).starts_with("0 of 1 host  19:00:00  "),
        "{}",
        python(&script)
    );
    for options in [&["-j"][..], &["-e"]] {
        let mut command = pcp(&home, tool("pcp"));
        let command = command.args(["nixl", "-t", "0.1", "-T", "0.3sec", "-H"]);
        let said = output(command.arg(&list).args(options));
        let status = said.status.code();
        let said = text(&said);
        assert!(
            status == Some(1) && said.contains("Connection refused"),
            "{said}"
        );
    }
}

/// pcp(1) passes -S in the environment.
#[test]
fn start_before_the_name_of_the_command_limits_events() {
    let script = "
import os
print(nixl.Options().has_start)
os.environ['PCP_START_TIME'] = '1min'
print(nixl.Options().has_start)
";
    assert_eq!(python(script), "False\nTrue\n");
}

/// A list on standard input is that of a file.
#[test]
fn list_on_standard_input_is_reported() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let mut command = pcp(&home, pmcd.tool("pcp"));
    command.args(["nixl", "-1", "-t", "0.2", "-H", "-"]);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.expect("it starts");
    let mut input = child.stdin.take().expect("piped");
    writeln!(
        input,
        "Discovered pmcd servers:\n  pcp://{}",
        address(&pmcd)
    )
    .expect("it reads");
    drop(input);
    let said = child.wait_with_output().expect("our child");
    let shown = text(&said);
    assert!(
        said.status.success() && shown.starts_with("1 of 1 host  "),
        "{shown}"
    );
    assert!(shown.contains(&format!("\n{} ", address(&pmcd))), "{shown}");
}
