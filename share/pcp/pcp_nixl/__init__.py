# SPDX-License-Identifier: GPL-2.0-or-later
"""The parts of pcp-nixl(1)."""
