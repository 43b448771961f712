// SPDX-License-Identifier: GPL-2.0-or-later

//! The daemon as PCP sees it: requests, answers, command line, rights, start and end.

mod answers;
mod check;
mod command_line;
mod dbpmda;
mod every_metric;
mod lifecycle;
mod name_services;
mod no_configuration;
mod pmcd;
mod pmstore;
mod privilege;
