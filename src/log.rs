// SPDX-License-Identifier: GPL-2.0-or-later

//! The log, on standard error, in the format of PCP's own (pmNotifyErr(3)): `[Sat Nov 21 01:30:00] pmdanixl(4242) Info:
//! ...`.
//!
//! Nothing rotates the log of a running PMDA, and other users can cause lines. So the number of lines and their total
//! length have limits.

use crate::base::text;
use budget::Budget;
use chrono::Local;
use std::fmt;
use std::io::stderr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use tracing::span::EnteredSpan;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::dynamic_filter_fn;
use tracing_subscriber::fmt::format::{DefaultFields, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormattedFields, layer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry;
use tracing_subscriber::registry::{LookupSpan, SpanRef};

mod budget;

/// Limit of the length of a path in a line, in characters.
const MAX_SHOWN: usize = 200;

/// Enters a span: its lines count against the limits of a user whose files they are about. `None`: any user that may
/// write to a scanned directory. Lines without a span are about the daemon itself.
pub fn span(uid: Option<u32>) -> EnteredSpan {
    tracing::info_span!("files", uid).entered()
}

/// Returns the user that a span is about, as its field: `uid=1000`. No field stands for any user.
fn user_of<'a>(span: &SpanRef<'a, impl LookupSpan<'a>>) -> String {
    let extensions = span.extensions();
    let fields = extensions.get::<FormattedFields<DefaultFields>>();
    fields.map_or_else(String::new, |fields| fields.fields.clone())
}

/// Returns a path as text for a line: quoted, with control and invisible characters escaped, and without its middle if
/// it is long.
#[must_use]
pub fn shown(path: &Path) -> String {
    let text = Vec::from_iter(text::one_line(&format!("{path:?}")).chars());
    if text.len() <= MAX_SHOWN {
        return text.into_iter().collect();
    }
    let (first, last) = (&text[..MAX_SHOWN / 2], &text[text.len() - MAX_SHOWN / 2..]);
    format!("{}...{}", String::from_iter(first), String::from_iter(last))
}

/// True if debug messages are logged too, and nothing is limited.
static DEBUG: AtomicBool = AtomicBool::new(false);

/// True if debug messages are logged too, and nothing is limited.
#[must_use]
pub fn is_debug() -> bool {
    DEBUG.load(Relaxed)
}

/// Turns debug messages on, and limits off, or back.
pub fn set_debug(debug: bool) {
    DEBUG.store(debug, Relaxed);
}

/// Starts the log. `debug` is as in [`set_debug`].
pub fn start(debug: bool) {
    set_debug(debug);
    let is_logged = dynamic_filter_fn(|of, _| *of.level() <= Level::INFO || is_debug());
    let lines = layer()
        .event_format(PcpFormat::default())
        .with_ansi(false)
        .with_writer(stderr);
    // It fails only if there is a log already.
    let _ = tracing::subscriber::set_global_default(registry().with(is_logged).with(lines));
    std::panic::set_hook(Box::new(|panic| {
        tracing::error!("internal error, please report it: {panic}");
    }));
}

/// The format of PCP's log, and its limits.
#[derive(Default)]
struct PcpFormat(Mutex<Budget>);

impl<S> FormatEvent<S, DefaultFields> for PcpFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, DefaultFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let (now, level) = (Local::now(), *event.metadata().level());
        let severity = match level {
            Level::ERROR => "Error",
            Level::WARN => "Warning",
            Level::INFO => "Info",
            _ => "Debug",
        };
        let mut message = String::new();
        context.format_fields(Writer::new(&mut message), event)?;
        let (time, pid) = (now.format("%a %b %e %H:%M:%S"), std::process::id());
        let message = text::one_line(&message);
        let line = format!("[{time}] pmdanixl({pid}) {severity}: {message}");
        let user = context.lookup_current().map(|span| user_of(&span));
        let mut budget = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let note = match is_debug() {
            true => Some(""),
            false => budget.admit(user, level, now.timestamp() / 60, line.len()),
        };
        // A line that is left out is empty, and nothing is written.
        note.map_or(Ok(()), |note| writeln!(writer, "{line}{note}"))
    }
}

#[cfg(test)]
pub(crate) mod tests;
