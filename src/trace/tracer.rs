// SPDX-License-Identifier: GPL-2.0-or-later

//! The tracer's loop: the processes to trace in, figures out.
//!
//! It is a process, not a thread. Attaching a program waits for the memory lock of each process that has the file
//! mapped, and opening the file for its file system. The observer kills a tracer that does not answer, and starts
//! another one: its figures begin at zero.

use super::libraries::Libraries;
use super::maps::Maps;
use super::pairs::Pairs;
use super::programs;
use super::protocol::{TraceReading, TraceReply, TraceRequest};
use crate::procfs::process::{ProcessId, sees_host};
use crate::rights::privilege;
use crate::shm::bpf;
use nix::time::{ClockId, clock_gettime};
use std::fs::metadata;
use std::io::{self, BufRead, Error, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::time::Instant;

/// Maps and attached programs for one configuration.
#[derive(Debug)]
struct Tracing {
    /// Bounds of the histogram, and whether results of postXferReq are read.
    configuration: (Vec<u64>, bool),
    maps: Maps,
    libraries: Libraries,
    pairs: Pairs,
}

impl Tracing {
    fn begin(request: &TraceRequest) -> io::Result<Self> {
        let namespace = match sees_host() {
            true => None,
            false => {
                let own = metadata("/proc/self/ns/pid")?;
                Some((own.dev(), own.ino()))
            }
        };
        let bounds = request.bounds.iter();
        let bounds = Vec::from_iter(bounds.map(|bound| bound.saturating_mul(1000)));
        privilege::raised(|| {
            let method = bpf::method(&programs::nothing())?;
            let maps = Maps::new(namespace)?;
            let programs = programs::all(&maps, &bounds, request.at_return);
            Ok(Self {
                configuration: (request.bounds.clone(), request.at_return),
                libraries: Libraries::new(method, programs)?,
                pairs: Pairs::default(),
                maps,
            })
        })
    }

    fn read(
        &mut self,
        request: &TraceRequest,
        before: impl FnMut(ProcessId),
    ) -> io::Result<TraceReading> {
        let failures = self
            .libraries
            .update(&request.processes, Instant::now(), before);
        let requested = request.processes.iter().map(|process| process.id).collect();
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
        let now = u64::try_from(now.tv_sec()).unwrap_or(0) * 1_000_000_000
            + u64::try_from(now.tv_nsec()).unwrap_or(0);
        let read = (request.bounds.len() + 1, request.at_return);
        let pairs = self.pairs.step(&self.maps, &requested, read, now)?;
        Ok(TraceReading {
            pairs,
            libraries: u32::try_from(self.libraries.len()).unwrap_or(u32::MAX),
            lost: Pairs::lost(&self.maps)?,
            failures,
        })
    }
}

/// Returns an error with what to do about it.
fn with_remedy(err: &Error) -> String {
    match err.kind() {
        ErrorKind::PermissionDenied => format!(
            "{err}; give CAP_BPF and CAP_PERFMON to the container (docker run --cap-add BPF --cap-add PERFMON), or set trace = false"
        ),
        _ => err.to_string(),
    }
}

/// Serves requests until the observer has ended.
///
/// # Errors
/// The pipes are broken.
pub fn run(requests: impl BufRead, mut replies: impl Write) -> io::Result<()> {
    let mut send = |reply: &TraceReply| {
        let mut message = serde_json::to_vec(reply)?;
        message.push(b'\n');
        replies.write_all(&message)?;
        replies.flush()
    };
    let mut tracing: Option<Result<Tracing, String>> = None;
    for line in requests.lines() {
        let request: TraceRequest = serde_json::from_str(&line?)?;
        let configuration = (request.bounds.clone(), request.at_return);
        // Detaches the programs.
        tracing.take_if(|tracing| {
            { tracing.as_ref() }.is_ok_and(|tracing| tracing.configuration != configuration)
        });
        let begin = || Tracing::begin(&request).map_err(|err| with_remedy(&err));
        let reading = match tracing.get_or_insert_with(begin) {
            Ok(tracing) => {
                let mut sent = Ok(());
                let before = |process| sent = send(&TraceReply::Attaching(process));
                let reading = tracing.read(&request, before);
                sent?;
                reading.map_err(|err| err.to_string())
            }
            Err(why) => Err(why.clone()),
        };
        send(&TraceReply::Read(reading))?;
    }
    Ok(())
}
