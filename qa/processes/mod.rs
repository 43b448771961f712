// SPDX-License-Identifier: GPL-2.0-or-later

//! Processes: labels and states of their agents, and processes without telemetry.

mod check;
mod facts;
mod gpu;
mod hangs;
mod labels;
mod network;
mod silent;
mod states;
mod traces;
mod transport;
