// SPDX-License-Identifier: GPL-2.0-or-later

//! `pcp nixl --hosts` with hosts and archives that answer late, with other values than expected, or not to the end:
//! they cost no other host its line.

use super::{pcp, python};
use crate::support::share::{archive, tool};
use crate::support::{Home, output, run, text};
use std::fs;

/// Defines `write(path, rows, begin)`, which makes an archive of three minutes, and hosts by the name of their
/// directory.
const WRITER: &str = "
import cpmapi, os
from pcp import pmi
NAMES = {
    'tx': ('nixl.host.transfer.tx_bytes', (39, 30, 0), None), 'p99': ('nixl.latency.xfer_time.p99', (39, 21, 2), (39, 0)),
    'server': ('nixl.agent.server', (39, 16, 9), (39, 0)),
}
def write(path, rows, begin=1700000000):
    os.makedirs(path)
    log = pmi.pmiLogImport(path + '/log')
    log.pmiSetHostname('host')
    log.pmiSetTimezone('UTC')
    instances = set()
    for key, kind, instance, _ in rows:
        name, pmid, indom = NAMES[key]
        indom = log.pmiInDom(*indom) if indom else cpmapi.PM_INDOM_NULL
        log.pmiAddMetric(name, log.pmiID(*pmid), kind, indom, SEMANTICS[key == 'tx'], nixl.pmapi.pmUnits(0, 0, 0, 0, 0, 0))
        if instance and instance not in instances:
            instances.add(instance)
            log.pmiAddInstance(indom, instance, len(instances))
    for minute in range(3):
        for key, kind, instance, value in rows:
            log.pmiPutValue(NAMES[key][0], instance, value.format(60 * minute))
        log.pmiWrite(begin + 60 * minute, 0)
    log.pmiEnd()
SEMANTICS = (cpmapi.PM_SEM_INSTANT, cpmapi.PM_SEM_COUNTER)
NUMBER, TEXT, DOUBLE = cpmapi.PM_TYPE_U64, cpmapi.PM_TYPE_STRING, cpmapi.PM_TYPE_DOUBLE
TX, P99 = ('tx', NUMBER, None, '{}'), ('p99', DOUBLE, 'a', '5')
";

#[test]
fn odd_values_of_a_host_leave_all_other_lines() {
    let home = Home::new();
    let farm = home.path("farm");
    python(&format!(
        "{WRITER}
farm = '{}/'
write(farm + 'good', [TX, P99])
write(farm + 'infinite', [TX, ('p99', DOUBLE, 'a', 'inf')])
write(farm + 'text', [('tx', TEXT, None, 'many')])
write(farm + 'textual', [TX, ('p99', TEXT, 'a', 'long')])
write(farm + 'number', [TX, P99, ('server', NUMBER, 'a', '7')])
write(farm + 'latin', [TX, P99])
for end in ('0', 'index', 'meta'):
    with open(farm + 'latin/log.' + end, 'r+b') as file:
        data = file.read()
        file.seek(data.index(b'host\\0'))
        file.write(b'h\\xf6st')
",
        farm.display()
    ));
    let mut command = pcp(&home, tool("pcp"));
    let shown = run(command
        .args(["nixl", "-t", "60", "-1", "-k", "host", "-H"])
        .arg(&farm));
    let lines: Vec<_> = shown.lines().skip(3).collect();
    assert_eq!(
        lines,
        [
            "good           -  1.00     -     -     -     -    -    5us a",
            "infinite       -  1.00     -     -     -     -    -      - -",
            "latin          -  1.00     -     -     -     -    -    5us a",
            "number         -  1.00     -     -     -     -    -    5us a",
            "text     no values: pmdanixl is not installed, or older than 0.3.0: there is no",
            "textual        -  1.00     -     -     -     -    -      - -",
        ],
        "{shown}"
    );
    let mut command = pcp(&home, tool("pcp"));
    let shown = run(command.args(["nixl", "-t", "60", "-1j", "-H"]).arg(&farm));
    assert!(shown.contains(r#""hostname": "h"#), "{shown}");
}

/// A host can send texts of 20,000 characters, which shortening must not take squared time for.
#[test]
fn text_is_shortened_in_one_pass() {
    let script = "
text, calls = importlib.import_module('pcp_nixl.text'), []
width = text.char_width
text.char_width = lambda char: calls.append(char) or width(char)
long = chr(0x6f22) * 10000
print(nixl.cut(long, 9), nixl.cut('abc' + long, 8), nixl.cut(long + 'abc', 7), len(calls) < 5 * len(long))
failure = nixl.Failure('host', long, None, None)
calls.clear()
print(nixl.failure_text(failure, 6, 25), len(calls) < 5 * len(long))
for cells in range(8):
    print(nixl.cut('e' + chr(0x301) + 'abcde', cells), end='|')
";
    let wide = "\u{6f22}";
    let expected = format!(
        "{wide}{wide}..{wide} abc..{wide} {wide}..bc True\nhost   no values: {wide}{wide}{wide} True\n\
         |.|..|e\u{301}..|e\u{301}..e|e\u{301}a..e|e\u{301}abcde|e\u{301}abcde|"
    );
    assert_eq!(python(script), expected);
}

/// A clock that was set back between two samples leaves no interval to divide by.
#[test]
fn rate_is_missing_after_reset_or_with_a_clock_set_back() {
    let script = "
print(nixl.rate(10, 30, 2), nixl.rate(None, 30, 2), nixl.rate(10, None, 2), nixl.rate(30, 10, 2), nixl.rate(1, 2, 0))
class Source(object):
    host, pairs, agents = 'host', {0: 'a::10.0.0.1'}, {0: 'a'}
    def addresses(self, sample):
        return set()
    def name(self, inst):
        return 'a'
def sample(time, value):
    names = ('host_tx', 'host_rx', 'host_dropped')
    values = {name: {0: value} for name in names + ('peer_tx', 'peer_rx', 'retransmits', 'tx_bytes')}
    return nixl.Sample(time, values)
for samples in ((sample(100, 5), sample(90, 9)), (sample(90, 9), sample(100, 5))):
    row = nixl.Row('host', Source(), *samples)
    pair = nixl.PeerRow('host', Source(), *samples).pairs[0]
    agent = nixl.rate(samples[0].value('tx_bytes', 0), samples[1].value('tx_bytes', 0), row.interval)
    print(row.tx_rate, row.rx_rate, row.dropped, pair['peer_tx'], pair['peer_rx'], pair['retransmits'], agent)
";
    assert_eq!(
        python(script),
        "10.0 None None None None\nNone None 4 None None None None\nNone None None None None None None\n"
    );
}

/// Descriptors take one request, since each takes a round trip: a host 50 ms away would be late for its first report.
#[test]
fn descriptors_of_all_metrics_take_one_request() {
    let home = Home::new();
    let script = format!(
        "{WRITER}
path = '{}/archive'
write(path, [TX, P99])
requests = []
context = nixl.pmapi.pmContext
for name in ('pmLookupDesc', 'pmLookupDescs'):
    def count(self, *args, call=getattr(context, name)):
        requests.append(args)
        return call(self, *args)
    setattr(context, name, count)
print([name for name, _, _ in nixl.HostSource(context(nixl.PM_CONTEXT_ARCHIVE, path)).metrics], len(requests))
",
        home.path(".").display()
    );
    assert_eq!(python(&script), "['p99', 'host_tx'] 1\n");
}

/// A host that needs longer than a report waits is in the reports that follow its answers, and in no other.
#[test]
fn late_answer_of_a_host_is_reported_once() {
    let script = "
class Answer(object):
    error = None
host = nixl.Host(nixl.Target('host', 'host'), nixl.HOSTS)
fleet = importlib.import_module('pcp_nixl.fleet')
def report(time):
    fleet.current_time = lambda: time
    row = host.outcome()
    print(row.error or 'values', getattr(row, 'timestamp', ''))
host.is_busy = True
report(1)
host.row = Answer()
report(2)
report(3)
host.is_busy, host.row = False, Answer()
report(4)
host.row = nixl.Failure('host', 'no route', 4, 5)
report(5)
host.is_busy = True
report(6)
";
    assert_eq!(
        python(script),
        "it has not answered yet 1\nvalues \nit does not answer 3\nvalues \nno route 5\nno route 6\n"
    );
}

/// libpcp looks for one name at a time. The resolver may need seconds for each, while another server of it is down.
#[test]
fn names_are_resolved_beside_each_other_outside_of_libpcp() {
    let script = "
import os, threading
names, both, context = [], threading.Barrier(2), nixl.pmapi.pmContext
def getaddrinfo(name, *rest, **more):
    if name == 'unknown':
        raise nixl.socket.gaierror(-2, 'Name or service not known')
    both.wait(60)
    return [(0, 0, 0, '', (address, 0)) for address in ('fe80::1%eth0', '127.0.0.1')]
def connect(kind, address):
    names.append(address)
    raise nixl.pmapi.pmErr(-111)
nixl.socket.getaddrinfo, nixl.pmapi.pmContext = getaddrinfo, connect
hosts = [nixl.Host(nixl.Target(name, name), nixl.HOSTS) for name in ('one:44399', 'pcp://two?a=b', 'unknown')]
threads = [threading.Thread(target=host.ask) for host in hosts]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(*sorted(names), *[host.row.error for host in hosts], sep='; ')
for name in ('pcps://one', 'one@gate', 'local:', 'unix:/run/x'):
    print(*nixl.Target(name, name).specifications())
os.environ['PCP_SECURE_SOCKETS'] = '1'
print(*nixl.Target('one', 'one').specifications())
try:
    nixl.pmapi.pmContext = context
    del os.environ['PCP_SECURE_SOCKETS']
    nixl.Target('unknown', 'unknown').context()
except nixl.UnknownHost as error:
    print(nixl.reason(error))
";
    assert_eq!(
        python(script),
        "127.0.0.1:44399; [fe80::1%eth0]:44399; pcp://127.0.0.1?a=b; pcp://[fe80::1%eth0]?a=b; \
         Connection refused; Connection refused; the name is not resolved: Name or service not known\n\
         pcps://one\none@gate\nlocal:\nunix:/run/x\none\n\
         the name is not resolved: Name or service not known ['unknown']\n"
    );
}

#[test]
fn limit_of_processes_is_reported_as_the_reason() {
    let script = "
def start(self):
    raise RuntimeError(\"can't start new thread\")
fleet = importlib.import_module('pcp_nixl.fleet')
fleet.threading.Thread.start = start
try:
    nixl.ThreadPool([nixl.Host(nixl.Target('host', 'host'), nixl.HOSTS)])
except nixl.TooManyHosts as error:
    print(error)
";
    assert_eq!(python(script), "1\n");
}

#[test]
fn damaged_archive_costs_only_its_host() {
    let home = Home::new();
    let farm = home.path("farm");
    let numbers = |factor: u64| {
        let values: Vec<_> = (0..600).map(|at| (at * factor).to_string()).collect();
        values.join(" ")
    };
    for name in ["damaged", "good"] {
        fs::create_dir_all(farm.join(name)).expect("made");
        let table = format!("nixl.host.transfer.tx_bytes - {}\n", numbers(60));
        archive(&farm.join(name).join("log"), 60, &table);
    }
    let path = farm.join("damaged/log.0");
    let mut bytes = fs::read(&path).expect("there");
    let middle = bytes.len() / 2;
    bytes[middle..middle + 200].fill(0xff);
    fs::write(&path, bytes).expect("written");
    let mut command = pcp(&home, tool("pcp"));
    let said = output(command.args(["nixl", "-t", "60", "-H"]).arg(&farm));
    let (status, said) = (said.status.code(), text(&said));
    let good = said.lines().filter(|line| line.starts_with("good "));
    assert_eq!((status, good.count()), (Some(0), 599));
    let reason = "\ndamaged no values: Corrupted record in a PCP archive log\n";
    assert!(said.contains(reason) && said.contains("\ndamaged       -  1.00 "));
}

/// Between archives of different years there may be millions of intervals.
#[test]
fn time_that_no_archive_has_is_skipped() {
    let home = Home::new();
    let farm = home.path("farm");
    let script = format!(
        "{WRITER}
farm = '{}/'
write(farm + 'old', [TX], 1500000000)
write(farm + 'new', [TX])
steps, next_row = [], nixl.ArchivedHost.next
def counted(self, at):
    steps.append(at)
    return next_row(self, at)
nixl.ArchivedHost.next = counted
sys.argv = ['pcp-nixl', '-H', farm, '-t', '50', '-j']
options = nixl.Options()
options.parse()
reports = nixl.run_archives(options, options.targets)
print(reports, len(steps) < 50)
",
        farm.display()
    );
    let shown = python(&script);
    let rates: Vec<_> = shown
        .lines()
        .filter(|line| line.contains("bytes_per_second\": 1.0"))
        .map(|line| &line[..line.find(", \"interval").expect("a member")])
        .collect();
    assert_eq!(
        rates,
        [
            r#"{"host": "old", "hostname": "host", "timestamp": 1500000050.0"#,
            r#"{"host": "old", "hostname": "host", "timestamp": 1500000100.0"#,
            r#"{"host": "new", "hostname": "host", "timestamp": 1700000050.0"#,
            r#"{"host": "new", "hostname": "host", "timestamp": 1700000100.0"#,
        ],
        "{shown}"
    );
    assert!(shown.ends_with("\n4 True\n"), "{shown}");
}
