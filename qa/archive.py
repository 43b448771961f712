#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""archive.py ARCHIVE SECONDS: writes a PCP archive of the table on standard input, with a sample every SECONDS.

A line is a metric, an instance (or - for a metric without instances), and a value for each sample (or - for none). A blank in a string
is %20. Descriptors of
this PMDA's metrics come from qa/golden/pminfo_dm.out, which a test compares with the PMDA. A line that begins with `label` has an
instance and NAME=VALUE pairs, its labels from the first sample on. It needs the distribution's Python, which has PCP's modules.
"""

import pathlib
import re
import struct
import sys

import cpmapi
from pcp import pmapi, pmi

# TYPE_LABEL_V2 of libpcp.
LABEL_RECORD = 3
# The instance domain of the agents.
AGENTS = (39, 0)

TYPES = {
    "32-bit int": cpmapi.PM_TYPE_32,
    "32-bit unsigned int": cpmapi.PM_TYPE_U32,
    "64-bit unsigned int": cpmapi.PM_TYPE_U64,
    "double": cpmapi.PM_TYPE_DOUBLE,
    "string": cpmapi.PM_TYPE_STRING,
}
SEMANTICS = {
    "counter": cpmapi.PM_SEM_COUNTER,
    "instant": cpmapi.PM_SEM_INSTANT,
    "discrete": cpmapi.PM_SEM_DISCRETE,
}
BYTES = (1, 0, 0, cpmapi.PM_SPACE_BYTE, 0, 0)
UNITS = {
    "byte": BYTES,
    "count": (0, 0, 1, 0, 0, 0),
    "microsec": (0, 1, 0, 0, cpmapi.PM_TIME_USEC, 0),
    "millisec": (0, 1, 0, 0, cpmapi.PM_TIME_MSEC, 0),
    "sec": (0, 1, 0, 0, cpmapi.PM_TIME_SEC, 0),
    "byte / sec": (1, -1, 0, cpmapi.PM_SPACE_BYTE, cpmapi.PM_TIME_SEC, 0),
    "none": (0, 0, 0, 0, 0, 0),
}
# Descriptors of PCP's own PMDAs: the agents of pmcd, network interfaces of the kernel with their addresses, and InfiniBand.
OTHERS = {
    "pmcd.agent.status": ((2, 4, 1), "32-bit int", (2, 2), "instant", "none"),
    "network.interface.in.bytes": ((60, 3, 0), "64-bit unsigned int", (60, 3), "counter", "byte"),
    "network.interface.out.bytes": ((60, 3, 8), "64-bit unsigned int", (60, 3), "counter", "byte"),
    "network.interface.inet_addr": ((60, 33, 0), "string", (60, 17), "discrete", "none"),
    "infiniband.port.total.bytes": ((91, 1, 12), "64-bit unsigned int", (91, 1), "counter", "byte"),
}


def own_metrics():
    """Yields the descriptors of the metrics of this PMDA."""
    golden = pathlib.Path(__file__).with_name("golden") / "pminfo_dm.out"
    entry = re.compile(
        r"^(nixl\.\S+) PMID: (\d+)\.(\d+)\.(\d+)\n"
        r"    Data Type: (.*?)  InDom: (?:PM_INDOM_NULL|(\d+)\.(\d+)) .*\n"
        r"    Semantics: (\w+)  Units: (.*)$",
        re.MULTILINE,
    )
    for name, *pmid, kind, domain, serial, semantics, units in entry.findall(golden.read_text()):
        indom = (int(domain), int(serial)) if domain else None
        yield name, (tuple(map(int, pmid)), kind, indom, semantics, units)


def merge_labels(path):
    """Merges the label records of an archive into one. libpcp_import 6.0 writes one for each instance, but libpcp reads only one
    for each time."""
    meta = pathlib.Path(f"{path}.meta")
    data, others, heads, sets, at = meta.read_bytes(), [], [], [], 0
    while at < len(data):
        length, kind = struct.unpack_from(">ii", data, at)
        record = data[at : at + length]
        if kind == LABEL_RECORD:
            # Layout: length, kind, time, type of label, domain, number of sets; the sets; the length again.
            heads.append(record[4:24])
            sets.append(record[28:-4])
        else:
            others.append(record)
        at += length
    length = struct.pack(">i", 32 + sum(map(len, sets)))
    merged = length + heads[0] + struct.pack(">i", len(sets)) + b"".join(sets) + length
    meta.write_bytes(b"".join(others) + merged)
    # The positions in the index are wrong now. libpcp works without it.
    pathlib.Path(f"{path}.index").unlink()


def main():
    path, seconds = sys.argv[1], float(sys.argv[2])
    known = dict(own_metrics()) | OTHERS
    log = pmi.pmiLogImport(path)
    log.pmiSetHostname("host")
    log.pmiSetTimezone("UTC")
    metrics, instances, rows, labels = set(), {}, [], []
    for line in filter(None, map(str.strip, sys.stdin)):
        metric, instance, *values = line.split()
        if metric == "label":
            labels += [(instance, *pair.split("=", 1)) for pair in values]
            continue
        pmid, kind, indom, semantics, units = known[metric]
        number = log.pmiInDom(*indom) if indom else cpmapi.PM_INDOM_NULL
        if metric not in metrics:
            metrics.add(metric)
            units = pmapi.pmUnits(*UNITS[units])
            log.pmiAddMetric(metric, log.pmiID(*pmid), TYPES[kind], number, SEMANTICS[semantics], units)
        ids = instances.setdefault(number, {})
        if indom and instance not in ids:
            ids[instance] = len(ids)
            log.pmiAddInstance(number, instance, ids[instance])
        rows.append((metric, instance if indom else None, values))
    agents = log.pmiInDom(*AGENTS)
    for instance, name, value in labels:
        log.pmiPutLabel(cpmapi.PM_LABEL_INSTANCES, agents, instances[agents][instance], name, value)
    samples = {len(values) for _, _, values in rows}
    if len(samples) != 1:
        sys.exit(f"archive.py: rows of different lengths: {sorted(samples)}")
    for sample in range(samples.pop()):
        for metric, instance, values in rows:
            if values[sample] != "-":
                log.pmiPutValue(metric, instance, values[sample].replace("%20", " "))
        log.pmiWrite(int(1_700_000_000 + sample * seconds), 0)
    log.pmiEnd()
    if labels:
        merge_labels(path)


main()
