# SPDX-License-Identifier: GPL-2.0-or-later
"""The list of hosts of the option --hosts: a file, standard input, or a directory with archives."""
import errno
import os
import re
import socket

from pcp import pmapi
from cpmapi import PM_CONTEXT_ARCHIVE, PM_CONTEXT_HOST

from .source import UnknownHost
from .text import decoded, natural, printable

# libpcp waits for answers by select(2), whose descriptors are below 1024. Each host takes one.
MAX_HOSTS = 900
# What pmfind(1) prints above its list, or in its place.
PMFIND_HEADING = re.compile(r"(Discovered \S+ servers:|No \S+ servers discovered)$")
# The identifier before a host with --sources of pmfind.
PMFIND_SOURCE = re.compile(r"[0-9a-f]{40}\s+")
# A host specification of PCPIntro(1): host or [IPv6 address] with ports, a proxy and attributes, or a Unix socket. libpcp
# prints three lines about another one each time, in the middle of a screen.
HOST = r"(?:\[[^][\s]+\]|[^][\s:/@?]+)"
HOST_SPECIFICATION = re.compile(
    r"((?P<protocol>pcps?://)?(?P<host>{0})(:\d+(,\d+)*)?(?P<proxy>@{0}(:\d+)?)?|(local|unix):[^?]*)(\?.*)?$".format(HOST))
# What a name is shown without: the protocol and the port that are the default.
DEFAULTS = re.compile(r"^pcp://|:44321$")
# The file that each archive has, perhaps compressed.
METADATA = re.compile(r"(.+)\.meta(\.[a-z0-9]+)?$")


class BadList(Exception):
    """The error for a list that cannot be used. Its text says where and why, and what to do."""


class Target(object):
    """What to ask for a host: its pmcd, or its archives."""

    def __init__(self, name, address, kind=PM_CONTEXT_HOST):
        self.name, self.address, self.kind = printable(name), address, kind
        self.is_archive = kind == PM_CONTEXT_ARCHIVE
        self.opened = None
        # The parts of the specification of a host, None for an archive.
        self.parts = None if self.is_archive else HOST_SPECIFICATION.match(address)

    def addresses(self):
        """Returns the addresses of a host by the resolver, which may take long. An archive or a Unix socket has none."""
        if not self.parts or not self.parts.group("host"):
            return []
        try:
            found = socket.getaddrinfo(self.parts.group("host").strip("[]"), None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise UnknownHost(getattr(error, "strerror", None) or str(error), [self.name])
        return [entry[4][0] for entry in found]

    def specifications(self):
        """Returns what to connect to, one after the other: each address of the host, in place of its name.

        libpcp holds a lock while the resolver looks for a name, so that all hosts would wait for one after the other.
        """
        parts = self.parts
        # A proxy may know other names than this host, and a certificate has the name.
        if not parts or parts.group("proxy") or parts.group("protocol") == "pcps://" or "PCP_SECURE_SOCKETS" in os.environ:
            return [self.address]
        before, after = self.address[:parts.start("host")], self.address[parts.end("host"):]
        addresses = ["[{}]".format(address) if ":" in address else address for address in self.addresses()]
        return [before + address + after for address in addresses] or [self.address]

    def context(self):
        """Connects, or opens the archives."""
        opened, self.opened = self.opened, None
        if opened:
            return opened
        specifications = self.specifications()
        for specification in specifications:
            try:
                return pmapi.pmContext(self.kind, specification)
            except UnicodeEncodeError:
                # A directory whose name is not UTF-8. pmapi takes text only.
                raise pmapi.pmErr(-errno.EILSEQ)
            except pmapi.pmErr:
                if specification == specifications[-1]:
                    raise

    def open(self):
        """Connects, or opens the archives, which then stay open for context()."""
        self.opened = self.context()

    def can_open(self):
        """Returns True if the archives can be opened. They then stay open for context()."""
        try:
            self.open()
        except pmapi.pmErr:
            return False
        return True


def read_targets(where):
    """Returns the hosts of a file, of standard input (-) or of a directory, each once."""
    try:
        if os.path.isdir(where):
            targets = archives_in(where)
        else:
            # An editor may have put a byte order mark first. Standard input may be closed.
            with open(0 if where == "-" else where, encoding="utf-8-sig", errors="replace", closefd=where != "-") as lines:
                targets = hosts_in("standard input" if where == "-" else where, lines)
    except OSError as error:
        raise BadList("{}: {}: name a file with one host a line, - for standard input, or a directory with archives".format(
            where, error.strerror))
    targets = list({target.name: target for target in targets}.values())
    if len(targets) > MAX_HOSTS:
        raise BadList("{}: {} hosts are too many: one command shows {}; split the list".format(where, len(targets), MAX_HOSTS))
    return targets


def hosts_in(where, lines):
    """Returns the hosts of a list with one on each line. A # begins a comment."""
    targets = []
    for number, line in enumerate(lines, 1):
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        if not text or PMFIND_HEADING.match(text):
            continue
        address = PMFIND_SOURCE.sub("", text)
        if not HOST_SPECIFICATION.match(address):
            raise BadList("{}: line {}: {!r}: this is not one host: write one a line, as for pcp -h, and IPv6 in brackets".format(
                where, number, text))
        targets.append(Target(DEFAULTS.sub("", address), address))
    if not targets:
        raise BadList("{}: there is no host: write one a line, as for pcp -h".format(where))
    return targets


def archives_in(directory):
    """Returns the hosts of a directory: each subdirectory with archives, and the hosts of archives in it."""
    targets, own = [], {}
    for name in sorted(os.listdir(directory), key=natural):
        path = os.path.join(directory, name)
        found = METADATA.match(name)
        if found:
            archive = os.path.join(directory, found.group(1))
            own.setdefault(host_of(archive), []).append(archive)
        elif os.path.isdir(path) and has_archives(path):
            targets.append(Target(name, path, PM_CONTEXT_ARCHIVE))
    names = [target.name for target in targets]
    for host, archives in own.items():
        name = "{} in {}".format(host, directory) if host in names else host
        targets.append(Target(name, ",".join(archives), PM_CONTEXT_ARCHIVE))
    if not targets:
        raise BadList("{}: there is no archive: name a directory of pmlogger, with one subdirectory for each host".format(
            directory))
    return targets


def has_archives(path):
    """Returns True for a directory with archives, or one that cannot be read: its line says so."""
    try:
        return any(map(METADATA.match, os.listdir(path)))
    except OSError:
        return True


def host_of(archive):
    """Returns the host that an archive is of, or the name of the archive if that cannot be read."""
    try:
        return decoded(pmapi.pmContext(PM_CONTEXT_ARCHIVE, archive).pmGetArchiveLabel().get_hostname)
    except (pmapi.pmErr, UnicodeEncodeError):
        return os.path.basename(archive)
