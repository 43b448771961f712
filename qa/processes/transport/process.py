#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""process.py [FILE...]: a process of a test, with these files mapped shared. A process with files of the names of NIXL's libraries
mapped uses NIXL, for pmdanixl.

It runs each line of standard input as Python code, and prints a line: the value of an expression, or "None". It ends with standard
input. The functions below are for that code.
"""
import ctypes
import fcntl
import mmap
import os
import random
import resource
import select
import selectors
import signal
import socket
import struct
import sys
import threading
import time

sys.dont_write_bytecode = True
import fuse  # noqa: E402

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
PAGE = mmap.PAGESIZE
# linux/prctl.h
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME = 1, 4, 15
# linux/userfaultfd.h
SYS_USERFAULTFD = {"x86_64": 323, "aarch64": 282}.get(os.uname().machine)
UFFDIO_API, UFFDIO_REGISTER = 0xC018AA3F, 0xC020AA00
VERSION, MISSING = 0xAA, 1
# asm-generic/ioctls.h: bytes that are not acknowledged
TIOCOUTQ = 0x5411
# linux/tcp.h
TCP_INFO, TCP_INFO_LEN, TOTAL_RETRANS, BYTES_ACKED, BYTES_RECEIVED = 11, 136, 100, 120, 128

mapped, kept, accepted = [], [], []


def map_file(path):
    """Maps a file shared and writable, as the producer of a ring does."""
    with open(path, "r+b") as file:
        mapped.append(mmap.mmap(file.fileno(), 0))


def map_pages(count):
    """Maps so many pages, each for itself."""
    mapped.extend(mmap.mmap(-1, PAGE) for _ in range(count))


def become(uid):
    """Becomes a user for good."""
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    # It is cleared by another user id (prctl(2)).
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def set_title(title):
    """Overwrites arguments and environment, like the package setproctitle."""
    # The fields behind the name, of which the first is the third (proc_pid_stat(5)).
    with open("/proc/self/stat", encoding="utf-8") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    arg_start, arg_end, env_start, env_end = (int(fields[number - 3]) for number in range(48, 52))
    ctypes.memset(env_start, 0, env_end - env_start)
    ctypes.memset(arg_start, 0, arg_end - arg_start)
    ctypes.memmove(arg_start, title, len(title))


def allow_files(number):
    """Raises the limit of open files to a number, if that is permitted. Returns the limit."""
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))
    except ValueError:
        pass
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def connect(host, port, count=1):
    return [socket.create_connection((host, port)) for _ in range(count)]


def send(connections, size):
    """Sends so many bytes on each connection, and waits until the peers have acknowledged them."""
    for connection in connections:
        connection.sendall(bytes(size))
    while any(struct.unpack("I", fcntl.ioctl(each, TIOCOUTQ, bytes(4)))[0] for each in connections):
        time.sleep(0.001)


def fill(connection):
    """Sends on a connection that does not block until no more bytes fit."""
    try:
        while True:
            connection.send(bytes(1 << 16))
    except BlockingIOError:
        pass


def wait_for_file(path):
    """Waits until a file exists."""
    while not os.path.exists(path):
        time.sleep(0.001)


def serve(host="127.0.0.1"):
    """Accepts connections, and reads what they send. Returns the port."""
    listener = socket.create_server((host, 0), backlog=1024)
    ready = selectors.DefaultSelector()
    ready.register(listener, selectors.EVENT_READ)

    def work():
        while True:
            for key, _ in ready.select():
                if key.fileobj is listener:
                    accepted.append(listener.accept()[0])
                    ready.register(accepted[-1], selectors.EVENT_READ)
                elif not key.fileobj.recv(1 << 20):
                    ready.unregister(key.fileobj)
                    accepted.remove(key.fileobj)
                    key.fileobj.close()
    threading.Thread(target=work, daemon=True).start()
    return listener.getsockname()[1]


def answer(count, size):
    """Waits until so many connections are accepted, and sends on each."""
    while len(accepted) < count:
        time.sleep(0.001)
    send(accepted, size)


def churn(host, port, count, size):
    """Opens a connection, sends so many bytes and closes it, again and again."""
    for _ in range(count):
        with socket.create_connection((host, port)) as connection:
            connection.sendall(bytes(size))


def counts(connections):
    """Bytes acknowledged, bytes received and segments sent again, as the kernel counts them."""
    infos = [each.getsockopt(socket.IPPROTO_TCP, TCP_INFO, TCP_INFO_LEN) for each in connections]
    fields = ("Q", BYTES_ACKED), ("Q", BYTES_RECEIVED), ("I", TOTAL_RETRANS)
    return " ".join(str(sum(struct.unpack_from(kind, info, at)[0] for info in infos)) for kind, at in fields)


def fork(code="", count=1):
    """Starts children with the mappings and descriptors of this process. They run the code, and end with this process."""
    children = []
    for _ in range(count):
        child = os.fork()
        if not child:
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            exec(code, globals())
            while True:
                signal.pause()
        children.append(child)
    return " ".join(map(str, children))


def clone(count):
    """Starts processes that share the memory of this one, and so cost no memory. They end with the PID namespace only."""
    stack = mmap.mmap(-1, 16 * PAGE)
    mapped.append(stack)
    # All of them stay in the first system call, and so can share a stack.
    top = ctypes.addressof(ctypes.c_char.from_buffer(stack)) + 8 * PAGE
    for _ in range(count):
        # CLONE_VM of linux/sched.h
        if LIBC.clone(LIBC.pause, ctypes.c_void_p(top), 0x100 | signal.SIGCHLD, None) < 0:
            raise OSError(ctypes.get_errno(), "clone")


def end(child):
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def missing_memory():
    """Memory whose first access waits for as long as this process runs (userfaultfd(2)). Takes root. Returns its address, or 0."""
    fd = LIBC.syscall(SYS_USERFAULTFD, os.O_CLOEXEC) if SYS_USERFAULTFD else -1
    if fd < 0:
        return 0
    address = LIBC.mmap(None, PAGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    fcntl.ioctl(fd, UFFDIO_API, bytearray(struct.pack("QQQ", VERSION, 0, 0)))
    fcntl.ioctl(fd, UFFDIO_REGISTER, bytearray(struct.pack("QQQQ", address, PAGE, MISSING, 0)))
    kept.append(fd)
    return address


def keep_memory_locked(file, uid):
    """Becomes a user, and keeps the kernel's lock of this process's memory, for a file of fuse.mount(): each read of maps, cmdline or environ in /proc waits
    for the file, except during a second after each failure. A thread that uses memory for the first time waits as well."""
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    become(uid)
    # A page of the file that no other process waits for.
    part = os.getpid() % fuse.PARTS * fuse.PART
    place = LIBC.mmap(None, ctypes.c_ulong(PAGE), mmap.PROT_READ, mmap.MAP_PRIVATE, file, ctypes.c_long(part))

    def read():
        while True:
            try:
                os.pread(memory, 1, place)
            except OSError:
                time.sleep(1)

    def write():
        # It waits for the reader, and later readers wait for it.
        while True:
            time.sleep(0.01)
            new = LIBC.mmap(None, ctypes.c_ulong(PAGE), mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, ctypes.c_long(0))
            LIBC.munmap(ctypes.c_void_p(new), ctypes.c_ulong(PAGE))

    for work in read, write:
        threading.Thread(target=work, daemon=True).start()


def keep_lock(connection, address):
    """Keeps the kernel's lock of a connection: a thread sends memory that is missing."""
    def block():
        LIBC.send(connection.fileno(), ctypes.c_void_p(address), 1, 0)
    threading.Thread(target=block, daemon=True).start()
    # A userfaultfd is readable once a thread waits for its memory.
    select.select(kept[-1:], [], [])


def swap(connections, file):
    """Lets the descriptor of each connection mean a file and the connection in turn, at random times."""
    copies = [os.dup(connection.fileno()) for connection in connections]

    def work():
        while True:
            place = random.randrange(len(copies))
            os.dup2(random.choice([file, copies[place]]), connections[place].fileno())
            time.sleep(0.0005)
    threading.Thread(target=work, daemon=True).start()


def main():
    for path in sys.argv[1:]:
        map_file(path)
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            value = eval(line, globals())
        except SyntaxError:
            value = exec(line, globals())
        print(value, flush=True)


if __name__ == "__main__":
    main()
