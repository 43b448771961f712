// SPDX-License-Identifier: GPL-2.0-or-later

//! What is read of other processes, in processes of its own.
//!
//! The daemon has requests for the observer ([`client`]). The observer ([`service`], [`supervisor`]) reads nothing that
//! can block: it starts workers ([`worker`]) that do, one process at a time, ends those that wait for a process, and
//! shares the time between users (`fair_queue`). With `trace`, it starts the tracer ([`tracers`]).

pub mod client;
pub mod examination;
mod fair_queue;
pub mod group;
mod job;
mod known_connections;
mod known_queues;
mod link;
pub mod protocol;
pub mod queues;
pub mod service;
pub mod sockets;
pub mod supervisor;
pub mod tracers;
pub mod version;
pub mod worker;
pub mod workers;
