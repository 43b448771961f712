# SPDX-License-Identifier: GPL-2.0-or-later
"""NVIDIA GPUs of this host.

The source is NVML, whose numbers and UUIDs are the instances and labels of PCP's PMDA nvidia. That PMDA itself is not started: it
also switches on accounting and persistence of each GPU. The functions of NVML here only query.
"""

import ctypes
import glob
import re
import typing


class Gpu(typing.NamedTuple):
    """A GPU: its number in NVML, the number of its device file, its UUID and its name."""

    index: int
    minor: int
    uuid: str
    name: str


def text(function, *arguments):
    """Calls a function of NVML that writes a text. Returns the text, or "" on failure."""
    found = ctypes.create_string_buffer(96)
    return "" if function(*arguments, found, len(found)) else found.value.decode()


def number(function, *arguments):
    """Calls a function of NVML that writes a number. Returns the number, or 0 on failure."""
    found = ctypes.c_uint()
    return 0 if function(*arguments, ctypes.byref(found)) else found.value


def gpus():
    """Returns the version of the driver and the GPUs: none without a driver."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return "", []
    if nvml.nvmlInit_v2():
        return "", []
    found = []
    for index in range(number(nvml.nvmlDeviceGetCount_v2)):
        device = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0:
            found.append(Gpu(index, number(nvml.nvmlDeviceGetMinorNumber, device), text(nvml.nvmlDeviceGetUUID, device),
                             text(nvml.nvmlDeviceGetName, device)))
    driver = text(nvml.nvmlSystemGetDriverVersion)
    nvml.nvmlShutdown()
    return driver, found


def kernel_uuids():
    """Returns the UUIDs of GPUs by the number of their device file, from /proc/driver/nvidia."""
    found = {}
    for path in glob.glob("/proc/driver/nvidia/gpus/*/information"):
        with open(path, encoding="utf-8", errors="replace") as file:
            content = file.read()
        uuid, minor = re.search(r"^GPU UUID:\s+(GPU-\S+)", content, re.M), re.search(r"^Device Minor:\s+(\d+)", content, re.M)
        if uuid and minor:
            found[int(minor[1])] = uuid[1]
    return found
